package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/httpapi"
	"sparkbar/httpapi/client"
)

func chatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chat [message]",
		Short: "Talk to a model in the terminal",
		Long: "Talk to a model in the terminal: one message if it is given, else a conversation, a line a turn.\n" +
			"Without --url the model is loaded in this process and no port is opened. Ctrl-C stops an answer, Ctrl-D ends.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := bind(cmd)
			if err != nil {
				return err
			}
			return chat(cmd.Context(), v, strings.Join(args, " "), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	modelFlags(cmd)
	f := cmd.Flags()
	f.String("url", "", "server to talk to, such as http://127.0.0.1:8080")
	f.String("key", "", "API key of that server")
	f.String("system", "", "system prompt")
	f.Int("max-tokens", 0, "longest answer (0 = the server's default)")
	f.Float64("temperature", 0, "sampling temperature (default: the model's)")
	f.Bool("stats", true, "print speed and acceptance after each answer")
	return cmd
}

func chat(ctx context.Context, v *config, message string, in io.Reader, out, stderr io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	c, end, err := chatClient(ctx, v, stderr)
	if err != nil {
		return err
	}
	defer end()
	req := client.ChatRequest{MaxTokens: v.GetInt("max-tokens")}
	if v.IsSet("temperature") {
		req.Temperature = pointer(v.GetFloat64("temperature"))
	}
	if s := v.GetString("system"); s != "" {
		req.Messages = append(req.Messages, client.Message{Role: "system", Content: s})
	}
	if message != "" {
		_, err := turn(ctx, c, &req, message, out, stderr, v.GetBool("stats"))
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for fmt.Fprint(out, "> "); lines.Scan(); fmt.Fprint(out, "> ") {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		if _, err := turn(ctx, c, &req, lines.Text(), out, stderr, v.GetBool("stats")); err != nil {
			fmt.Fprintln(stderr, "sparkbar:", err)
		}
	}
	fmt.Fprintln(out)
	return lines.Err()
}

// turn sends a message and prints the answer as it comes. An interrupt ends
// the answer; what has come stays part of the conversation.
func turn(ctx context.Context, c *client.Client, req *client.ChatRequest, message string, out, stderr io.Writer, stats bool) (client.ChatResult, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	req.Messages = append(req.Messages, client.Message{Role: "user", Content: message})
	var text strings.Builder
	res, err := c.Chat(ctx, *req, func(d client.ChatDelta) error {
		text.WriteString(d.Text)
		_, err := io.WriteString(out, d.Reasoning+d.Text)
		return err
	})
	fmt.Fprintln(out)
	if err != nil && !errors.Is(err, context.Canceled) {
		req.Messages = req.Messages[:len(req.Messages)-1]
		return res, err
	}
	req.Messages = append(req.Messages, client.Message{Role: "assistant", Content: text.String()})
	if s := res.Stats; stats && s != nil {
		fmt.Fprintf(stderr, "  %d tokens · %.1f tok/s decode · accept %.2f/round · %d target forwards\n", s.CompletionTokens, s.DecodeTokensPerSec, s.AcceptLen, s.TargetForwards)
	}
	return res, nil
}

// chatClient is a client of the given server, or of one in this process.
func chatClient(ctx context.Context, v *config, stderr io.Writer) (*client.Client, func(), error) {
	if url := v.GetString("url"); url != "" {
		c, err := client.New(url, v.GetString("key"))
		return c, func() {}, err
	}
	load, err := loadRequest(v)
	if err != nil {
		return nil, nil, err
	}
	eng, err := newEngine(v, load)
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		eng.Close(ctx)
	}
	fmt.Fprintf(stderr, "loading %s ...\n", load.Model)
	if _, err := eng.LoadFrom(ctx, load); err != nil {
		end()
		return nil, nil, err
	}
	return client.InProcess(httpapi.New(eng, httpapi.Options{}), ""), end, nil
}
