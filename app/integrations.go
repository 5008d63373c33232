package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/httpapi/client"
)

// product is the name of this server in the files of client programs.
const product = "mlx-dspark"

func integrationsCommand() *cobra.Command {
	cmd := command("integrations [client]", "Show how client programs use the server, or write their files", cobra.MaximumNArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		c, err := client.New(v.GetString("url"), v.GetString("key"))
		if err != nil {
			return &usageError{err}
		}
		all, err := c.Integrations(cmd.Context())
		if err != nil {
			return fmt.Errorf("the server at %s does not tell: %w", v.GetString("url"), err)
		}
		if len(args) == 1 {
			i := slices.IndexFunc(all, func(x client.Integration) bool { return x.ID == args[0] })
			if i < 0 {
				var ids []string
				for _, x := range all {
					ids = append(ids, x.ID)
				}
				return &usageError{fmt.Errorf("there is no client '%s'; there are %s", args[0], strings.Join(ids, ", "))}
			}
			all = all[i : i+1]
		}
		if v.GetBool("write") {
			if len(args) == 0 {
				return &usageError{errors.New("--write needs the client whose file to write")}
			}
			home, err := os.UserHomeDir()
			if err != nil {
				return err
			}
			return writeIntegration(all[0], home, v.GetBool("yes"), time.Now(), cmd.InOrStdin(), cmd.OutOrStdout())
		}
		for _, x := range all {
			printIntegration(cmd.OutOrStdout(), x)
		}
		return nil
	})
	f := cmd.Flags()
	f.String("url", "http://127.0.0.1:8080", "the server")
	f.String("key", "", "its API key")
	f.Bool("write", false, "write the client's file: shows what changes, asks, and keeps a copy")
	f.Bool("yes", false, "do not ask")
	return cmd
}

func printIntegration(out io.Writer, x client.Integration) {
	fmt.Fprintf(out, "%s (%s) — %s\n", x.Name, x.ID, x.Summary)
	for _, s := range x.Setup {
		fmt.Fprintf(out, "  %s:\n", s.Label)
		switch s.Kind {
		case "command":
			fmt.Fprintf(out, "    %s\n", s.Command)
		case "file":
			fmt.Fprintf(out, "    # %s\n", s.Path)
			for line := range strings.Lines(s.Content) {
				fmt.Fprintf(out, "    %s", line)
			}
		default:
			list := s.Env
			if s.Kind == "fields" {
				list = s.Fields
			}
			for _, key := range sortedKeys(list) {
				if s.Kind == "fields" {
					fmt.Fprintf(out, "    %s: %s\n", key, list[key])
				} else {
					fmt.Fprintf(out, "    export %s='%s'\n", key, strings.ReplaceAll(list[key], "'", `'\''`))
				}
			}
		}
	}
	if x.Note != "" {
		fmt.Fprintf(out, "  Note: %s\n", x.Note)
	}
	fmt.Fprintln(out)
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// writeIntegration writes the file of a client: a new one, one that is this
// product's own, or this product's part of one that is shared. A shared file
// that is not plain JSON is left alone.
func writeIntegration(x client.Integration, home string, yes bool, now time.Time, in io.Reader, out io.Writer) error {
	i := slices.IndexFunc(x.Setup, func(s client.SetupStep) bool { return s.Kind == "file" })
	if i < 0 {
		return &usageError{fmt.Errorf("%s has no file to write; `sparkbar integrations %s` shows what to do", x.Name, x.ID)}
	}
	e, err := planEdit(x.Setup[i].Path, x.Setup[i].Content, home)
	if err != nil {
		return err
	}
	change := e.diff()
	if change == "" {
		fmt.Fprintf(out, "%s is as it should be\n", e.path)
		return nil
	}
	fmt.Fprint(out, change)
	if !yes {
		fmt.Fprint(out, "Write it? [y/N] ")
		line := make([]byte, 8)
		n, _ := in.Read(line)
		if a := strings.ToLower(strings.TrimSpace(string(line[:n]))); a != "y" && a != "yes" {
			fmt.Fprintln(out, "nothing was written")
			return nil
		}
	}
	backup, err := e.write(now)
	if backup != "" {
		fmt.Fprintf(out, "the old file is kept as %s\n", backup)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "wrote %s\n", e.path)
	return nil
}

// mergeJSON puts the product's entries of add into old and leaves the rest,
// and its order, as it is.
func mergeJSON(old, add []byte) ([]byte, error) {
	if len(bytes.TrimSpace(old)) == 0 {
		return add, nil
	}
	if bytes.HasPrefix(bytes.TrimSpace(add), []byte("[")) {
		return mergeList(old, add)
	}
	a, err := readOrdered(old)
	if err != nil {
		return nil, errors.New("it is not plain JSON")
	}
	b, err := readOrdered(add)
	if err != nil {
		return nil, errors.New("it cannot be merged")
	}
	x, ok := a.(*ordered)
	y, ok2 := b.(*ordered)
	if !ok || !ok2 {
		return nil, errors.New("it is not a JSON object")
	}
	if err := x.merge(y); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, x.encode(), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// mergeList puts the product's entry, which add holds alone, into a list of
// entries with names.
func mergeList(old, add []byte) ([]byte, error) {
	var list, entry []json.RawMessage
	if err := json.Unmarshal(old, &list); err != nil {
		return nil, errors.New("it is not a plain JSON list")
	}
	if err := json.Unmarshal(add, &entry); err != nil || len(entry) != 1 {
		return nil, errors.New("it cannot be merged")
	}
	at := slices.IndexFunc(list, func(raw json.RawMessage) bool {
		var named struct{ Name string }
		return json.Unmarshal(raw, &named) == nil && named.Name == product
	})
	if at < 0 {
		list = append(list, entry[0])
	} else {
		list[at] = entry[0]
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// ordered is a JSON object that keeps its order. A value is an *ordered or raw
// JSON.
type ordered struct {
	keys   []string
	values map[string]any
}

func readOrdered(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	v, err := orderedValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func orderedValue(d *json.Decoder) (any, error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return nil, err
	}
	if raw[0] != '{' {
		return raw, nil
	}
	o := &ordered{values: map[string]any{}}
	inner := json.NewDecoder(bytes.NewReader(raw))
	if _, err := inner.Token(); err != nil {
		return nil, err
	}
	for inner.More() {
		t, err := inner.Token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		v, err := orderedValue(inner)
		if err != nil {
			return nil, err
		}
		if _, twice := o.values[key]; twice {
			return nil, fmt.Errorf("it has the key %q twice", key)
		}
		o.keys, o.values[key] = append(o.keys, key), v
	}
	return o, nil
}

// merge adds what is missing; the entry of the product is replaced whole, and
// other values that are there stay.
func (o *ordered) merge(add *ordered) error {
	for _, key := range add.keys {
		old, there := o.values[key]
		if !there {
			o.keys = append(o.keys, key)
		}
		a, isObject := old.(*ordered)
		b, adds := add.values[key].(*ordered)
		switch {
		case !there || key == product || strings.HasPrefix(key, "openai/"): // the latter is Aider's name for it
			o.values[key] = add.values[key]
		case isObject && adds:
			if err := a.merge(b); err != nil {
				return err
			}
		case adds:
			return fmt.Errorf("its %q is not an object", key)
		}
	}
	return nil
}

func (o *ordered) encode() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		k, _ := json.Marshal(key) // a string always encodes
		b.Write(k)
		b.WriteByte(':')
		switch v := o.values[key].(type) {
		case *ordered:
			b.Write(v.encode())
		case json.RawMessage:
			b.Write(v)
		}
	}
	b.WriteByte('}')
	return b.Bytes()
}

// diff shows the lines that go and come, with nothing of what stays.
func diff(old, now string) string {
	a, b := strings.SplitAfter(old, "\n"), strings.SplitAfter(now, "\n")
	// Longest common subsequence; configuration files are small.
	const most = 4000
	if len(a) > most || len(b) > most {
		return "(the file is too long to show what changes)\n"
	}
	n := make([][]int, len(a)+1)
	for i := range n {
		n[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				n[i][j] = n[i+1][j+1] + 1
			} else {
				n[i][j] = max(n[i+1][j], n[i][j+1])
			}
		}
	}
	var out strings.Builder
	put := func(sign, line string) {
		if line == "" {
			return
		}
		out.WriteString(sign + strings.TrimSuffix(line, "\n") + "\n")
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j < len(b) && (i == len(a) || n[i][j+1] > n[i+1][j]):
			put("+", b[j])
			j++
		default:
			put("-", a[i])
			i++
		}
	}
	return out.String()
}
