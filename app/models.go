package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sparkbar/engine"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/httpapi/client"
	"sparkbar/resources"
)

// command makes a command whose flags and settings are read first.
func command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, v *config, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, list []string) error {
		v, err := bind(cmd)
		if err != nil {
			return err
		}
		return run(cmd, v, list)
	}}
}

// storageFlags say where models lie.
func storageFlags(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringSlice("model-dirs", nil, "folders with models, besides those of the Hugging Face cache, LM Studio and Ollama")
	f.Bool("offline", false, "never use the network")
	f.StringSlice("hub-hosts", nil, "further hosts that the hub may redirect downloads to")
	f.String("hub-ca", "", "file of certificates trusted besides the system's")
	return cmd
}

// catalogue lists the models on this machine.
func catalogue(v *config) (*models.Catalogue, models.Places) {
	places, _, _ := storage(v)
	target, _ := resources.Demo()
	return models.NewCatalogue(models.CatalogueOptions{Places: places, Builtins: []models.Model{demoModel(target)}}), places
}

func gigabytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d B", n)
}

func lsCommand() *cobra.Command {
	cmd := command("ls", "List the models on this machine", cobra.NoArgs, func(cmd *cobra.Command, v *config, _ []string) error {
		c, _ := catalogue(v)
		return list(cmd.OutOrStdout(), c.List(), v.GetBool("all"), v.GetBool("json"))
	})
	cmd.Flags().Bool("all", false, "also list published pairs of model and drafter that can be downloaded")
	cmd.Flags().Bool("json", false, "print JSON")
	return storageFlags(cmd)
}

// modelRow is a model as `ls --json` prints it.
type modelRow struct {
	ID           string `json:"id"`
	Kind         string `json:"kind"` // model, drafter
	Bytes        int64  `json:"size_bytes"`
	Quantization string `json:"quantization,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	Context      int    `json:"context,omitempty"`
	Source       string `json:"source"`
	Path         string `json:"path,omitempty"`
	Reason       string `json:"reason,omitempty"` // why it cannot be loaded
}

func rowOf(m models.Model) modelRow {
	r := modelRow{ID: m.ID, Kind: "model", Bytes: m.Bytes, Quantization: m.Quantization, Architecture: m.Type, Context: m.Context, Source: string(m.Source), Path: m.Path, Reason: m.Reason}
	if m.Drafter {
		r.Kind = "drafter"
	}
	return r
}

func list(out io.Writer, all []models.Model, published, asJSON bool) error {
	if asJSON {
		rows := []modelRow{}
		for _, m := range all {
			rows = append(rows, rowOf(m))
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", " ")
		return enc.Encode(rows)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tSIZE\tFORMAT\tCONTEXT\tWHERE\tNOTE")
	for _, m := range all {
		note := m.Reason
		if m.Drafter && note == "" {
			note = "drafter"
		}
		context := ""
		if m.Context > 0 {
			context = fmt.Sprint(m.Context)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, gigabytes(m.Bytes), cmp.Or(m.Quantization, "-"), cmp.Or(context, "-"), m.Source, note)
	}
	if published {
		fmt.Fprintln(w, "\t\t\t\t\t\nPUBLISHED\tMEMORY\tMODE\tSPEED-UP\t\t")
		for _, r := range engine.Registry() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\t\n", r.Target, r.RAM, r.Mode, r.Speedup)
		}
	}
	return w.Flush()
}

// find looks a model up by its id, or says which there are.
func find(c *models.Catalogue, id string) (models.Model, error) {
	if m, ok := c.Find(id); ok {
		return m, nil
	}
	var near []string
	for _, m := range c.List() {
		if strings.Contains(strings.ToLower(m.ID), strings.ToLower(filepath.Base(id))) {
			near = append(near, m.ID)
		}
	}
	hint := "`sparkbar ls` lists those that are"
	if len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return models.Model{}, &usageError{fmt.Errorf("there is no model '%s' on this machine; %s", id, hint)}
}

func showCommand() *cobra.Command {
	return storageFlags(command("show <model>", "Tell all about a model on this machine, and whether it fits", cobra.ExactArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		c, _ := catalogue(v)
		m, err := find(c, args[0])
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, m, machine.ReadMemory())
	}))
}

func show(out io.Writer, c *models.Catalogue, m models.Model, memory machine.Memory) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	r := rowOf(m)
	line("id", "%s", r.ID)
	line("kind", "%s, %s", r.Kind, m.Kind)
	line("where", "%s %s", r.Source, r.Path)
	line("architecture", "%s", cmp.Or(r.Architecture, "unknown"))
	line("format", "%s", cmp.Or(r.Quantization, "unknown"))
	line("size", "%s", gigabytes(r.Bytes))
	if m.Revision != "" {
		line("revision", "%s", m.Revision)
	}
	if r.Reason != "" {
		line("cannot be loaded", "%s", r.Reason)
		return w.Flush()
	}
	if m.Drafter {
		return w.Flush()
	}
	line("context", "%d", m.Context)
	n := models.Need{Weights: m.Bytes, Target: m.Geometry, MaxContext: m.Context}
	choice, err := models.Resolve(m.ID, "auto", "")
	if err == nil && choice.Drafter != "" {
		state := "not here; `sparkbar pull " + m.ID + "` fetches it"
		if d, ok := c.Find(choice.Drafter); ok && d.Loadable() {
			state = gigabytes(d.Bytes)
			n.Drafter, n.DrafterContext = d.Bytes, d.Geometry
		}
		line("drafter", "%s (%s)", choice.Drafter, state)
	}
	if err == nil {
		line("mode", "%s", choice.Mode)
	}
	have := models.Memory{Total: memory.Total, Free: memory.Available}
	for _, context := range []int{4096, 16384, 65536, m.Context} {
		if context > m.Context && m.Context > 0 {
			continue
		}
		n.Context = context
		f := n.Fit(have)
		line(fmt.Sprintf("at %d tokens", context), "%s: %s", strings.ReplaceAll(string(f.Verdict), "_", " "), f.Reason)
	}
	return w.Flush()
}

func pullCommand() *cobra.Command {
	cmd := command("pull <model>...", "Download models from the hub, each with its drafter", cobra.MinimumNArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		_, hub, err := storage(v)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return pull(ctx, hub, args, !v.GetBool("no-drafter"), cmd.OutOrStdout(), isTerminal(cmd.OutOrStdout()))
	})
	cmd.Flags().Bool("no-drafter", false, "leave the drafter out")
	return storageFlags(cmd)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// pull downloads models; on a terminal one line shows how far it is.
func pull(ctx context.Context, hub *models.Downloader, ids []string, drafters bool, out io.Writer, terminal bool) error {
	var reqs []models.Request
	add := func(id string, drafter bool) {
		q := models.Named(id)
		q.Drafter = drafter
		if !slices.Contains(reqs, q) {
			reqs = append(reqs, q)
		}
	}
	for _, id := range ids {
		target := id
		if i := slices.IndexFunc(engine.Registry(), func(r engine.Row) bool { return r.ID == id }); i >= 0 {
			target = engine.Registry()[i].Target
		}
		if target == demoID {
			return &usageError{fmt.Errorf("%s is part of the program; there is nothing to download", demoID)}
		}
		if !models.OnHub(target) {
			return &usageError{fmt.Errorf("%q is not the name of a model on the hub; it should look like mlx-community/Qwen3-4B-8bit", target)}
		}
		add(target, false)
		if c, err := models.Resolve(target, "auto", ""); drafters && err == nil && c.Drafter != "" {
			add(c.Drafter, true)
		}
	}
	job := hub.Start(reqs...)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ended, gone := job.Done(), ctx.Done(); ended != nil; {
		select {
		case <-ended:
			ended = nil
		case <-gone:
			gone = nil
			job.Cancel(false)
		case <-tick.C:
			if terminal {
				fmt.Fprintf(out, "\r\x1b[K%s", progressLine(job.Progress()))
			}
		}
	}
	if terminal {
		fmt.Fprint(out, "\r\x1b[K")
	}
	got, err := job.Wait(context.Background())
	for _, s := range got {
		fmt.Fprintf(out, "%s is in %s\n", s.Repo, s.Path)
	}
	if ctx.Err() != nil {
		return errors.New("stopped; what has arrived stays, and `sparkbar pull` goes on from there")
	}
	return err
}

const barWidth = 24

// progressLine is one line about a download.
func progressLine(p models.Progress) string {
	if p.BytesTotal <= 0 {
		return fmt.Sprintf("%s: %s", p.Repo, p.State)
	}
	share := min(max(float64(p.BytesDone)/float64(p.BytesTotal), 0), 1)
	full := int(share * barWidth)
	line := fmt.Sprintf("%s [%s%s] %3.0f %% of %s", p.Repo, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), 100*share, gigabytes(p.BytesTotal))
	if p.BytesPerSecond > 0 {
		line += fmt.Sprintf(", %s/s", gigabytes(int64(p.BytesPerSecond)))
	}
	if p.ETA > 0 {
		line += fmt.Sprintf(", %s left", p.ETA.Round(time.Second))
	}
	if p.State != models.StateDownloading {
		line += ", " + string(p.State)
	}
	return line
}

func rmCommand() *cobra.Command {
	cmd := command("rm <model>", "Remove a downloaded model from this machine", cobra.ExactArgs(1), func(cmd *cobra.Command, v *config, args []string) error {
		c, places := catalogue(v)
		m, err := find(c, args[0])
		if err != nil {
			return err
		}
		return remove(m, places, v.GetBool("yes"), cmd.InOrStdin(), cmd.OutOrStdout())
	})
	cmd.Flags().Bool("yes", false, "do not ask")
	return storageFlags(cmd)
}

// removable returns the folder of a model in the hub cache. Nothing else is
// ever removed: folders of other programs and of the user are theirs.
func removable(m models.Model, places models.Places) (string, error) {
	switch m.Source {
	case models.SourceHub:
	case models.SourceBuiltin:
		return "", &usageError{fmt.Errorf("%s is part of the program", m.ID)}
	case models.SourceFolder:
		return "", &usageError{fmt.Errorf("%s lies in a folder of yours; remove %s yourself if that is meant", m.ID, m.Path)}
	default:
		return "", &usageError{fmt.Errorf("%s belongs to %s; remove it there", m.ID, m.Source)}
	}
	dir := m.Path
	for filepath.Dir(dir) != filepath.Clean(places.Hub) {
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("%s does not lie in the cache %s; nothing was removed", m.Path, places.Hub)
		}
		dir = up
	}
	if !strings.HasPrefix(filepath.Base(dir), "models--") {
		return "", fmt.Errorf("%s is not a folder of a model; nothing was removed", dir)
	}
	return dir, nil
}

// removeModel deletes a folder that removable named.
func removeModel(dir string, places models.Places) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(places.Hub, ".locks", filepath.Base(dir))) // of downloads of it
}

// remove deletes a model of the hub cache after asking.
func remove(m models.Model, places models.Places, yes bool, in io.Reader, out io.Writer) error {
	dir, err := removable(m, places)
	if err != nil {
		return err
	}
	if !yes {
		fmt.Fprintf(out, "Remove %s (%s) from %s? All its revisions go. [y/N] ", m.ID, gigabytes(m.Bytes), dir)
		line, _ := bufio.NewReader(in).ReadString('\n')
		if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
			fmt.Fprintln(out, "nothing was removed")
			return nil
		}
	}
	if err := removeModel(dir, places); err != nil {
		return err
	}
	fmt.Fprintf(out, "removed %s\n", m.ID)
	return nil
}

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor [MODEL]", Short: "Examine this machine and the set-up; each finding comes with its fix", Args: cobra.MaximumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		file, err := openSettings()
		var bad *badSetting
		if err != nil && !errors.As(err, &bad) { // a faulty file is a finding
			return &usageError{err}
		}
		v, err := bindTo(cmd, file)
		if err != nil {
			return err
		}
		var list []engine.Finding
		if len(args) == 1 {
			v.Set("model", args[0])
		}
		if v.GetBool("kernels") {
			return examineKernels(cmd.Context(), cmd.OutOrStdout(), v)
		}
		if len(args) == 1 {
			return &usageError{errors.New("doctor takes a model only with --kernels, to try the GPU's kernels with it")}
		}
		if url := v.GetString("url"); url != "" {
			c, err := client.New(url, v.GetString("key"))
			if err != nil {
				return &usageError{err}
			}
			_, found, err := c.Doctor(cmd.Context())
			if err != nil {
				return err
			}
			for _, f := range found {
				list = append(list, engine.Finding(f))
			}
		} else {
			load, err := loadRequest(v)
			if err != nil {
				return err
			}
			eng, err := newEngine(v, load)
			if err != nil {
				return err
			}
			list = append(eng.Doctor(), portFindings(cmd.Context(), v)...)
			_ = eng.Close(context.Background())
		}
		return report(cmd.OutOrStdout(), list, v.GetBool("json"))
	}}
	modelFlags(cmd) // what a server would run with, from settings and environment
	serverFlags(cmd)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	cmd.Flags().String("url", "", "examine the machine of that server")
	cmd.Flags().String("key", "", "API key of that server")
	cmd.Flags().Bool("json", false, "print JSON")
	cmd.Flags().Bool("kernels", false, "try all kernels of the GPU that MODEL needs against the CPU, time their variants, and keep the choice")
	return cmd
}

// errProblems is the end of a doctor that found something.
var errProblems = errors.New("there are problems")

func report(out io.Writer, list []engine.Finding, asJSON bool) error {
	bad := slices.ContainsFunc(list, func(f engine.Finding) bool { return f.Level == engine.LevelProblem })
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", " ")
		if list == nil {
			list = []engine.Finding{}
		}
		problems := []string{}
		for _, f := range list {
			if f.Level == engine.LevelProblem {
				problems = append(problems, f.Message)
			}
		}
		if err := enc.Encode(map[string]any{"ok": !bad, "problems": problems, "findings": list}); err != nil {
			return err
		}
	} else {
		for _, f := range list {
			fmt.Fprintf(out, "%-9s  %s\n           fix: %s\n", f.Level, f.Message, f.Fix)
		}
		if len(list) == 0 {
			fmt.Fprintln(out, "everything is fine")
		}
	}
	if bad {
		return errProblems
	}
	return nil
}
