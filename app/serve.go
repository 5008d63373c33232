package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/httpapi"
	"sparkbar/resources"
)

// demoID is the id of the model that is part of the binary.
const demoID = "demo"

// profiles are the values of --compat.
var profiles = map[string]func() httpapi.Profile{"sparkbar": httpapi.SparkbarProfile, "mlx-lm": httpapi.MLXLMProfile}

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over HTTP",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := bind(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, v, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	modelFlags(cmd)
	serverFlags(cmd)
	return cmd
}

func serverFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("host", "127.0.0.1", "address to listen on")
	f.Int("port", 8080, "port to listen on (0 = any free one)")
	f.StringSlice("api-key", nil, "key that clients must present; may be repeated")
	f.String("api-key-file", "", "file with one key per line")
	f.StringSlice("allow-host", nil, "name accepted in the Host header besides loopback names; * = any")
	f.StringSlice("cors-origin", nil, "web origin whose pages may call the API; * = any")
	f.Bool("no-model", false, "start without a model")
	f.Int("default-max-tokens", 2048, "longest answer when a request does not say")
	f.Int("max-tokens-cap", 32768, "longest answer that a request may ask for")
	f.Float64("default-temperature", 0, "temperature when a request does not say (default: the model's)")
	f.Float64("default-top-p", 1, "top_p when a request does not say (default: the model's)")
	f.Int("default-top-k", 0, "top_k when a request does not say (default: the model's)")
	f.String("model-root", "", "folder below which clients may load models (default: the working folder)")
	f.Int("prefix-cache-slots", 2, "finished conversations that are kept for reuse")
	f.Bool("no-prefix-cache", false, "keep no conversations for reuse")
	f.Int("queue-limit", 64, "requests that may wait")
	f.String("compat", "sparkbar", "wire profile: sparkbar or mlx-lm")
	f.String("log-level", "info", "debug, info, warn or error")
}

// newEngine makes an engine from the flags.
func newEngine(v *viper.Viper, load engine.LoadRequest) (*engine.Engine, error) {
	target, drafter := resources.Demo()
	root := v.GetString("model-root")
	if root == "" {
		root = "."
	}
	slots := v.GetInt("prefix-cache-slots")
	if v.GetBool("no-prefix-cache") || slots == 0 {
		slots = -1
	}
	backend, err := backendOf(v)
	if err != nil {
		return nil, err
	}
	o := engine.Options{Version: version, Backend: backend, Builtins: map[string]engine.Builtin{demoID: {Target: target, Drafter: drafter}}, ModelRoot: root,
		DefaultMaxTokens: v.GetInt("default-max-tokens"), MaxTokensCap: v.GetInt("max-tokens-cap"), Base: load, QueueLimit: v.GetInt("queue-limit"), Slots: slots}
	if v.IsSet("default-temperature") {
		o.Temperature = pointer(v.GetFloat64("default-temperature"))
	}
	if v.IsSet("default-top-p") {
		o.TopP = pointer(v.GetFloat64("default-top-p"))
	}
	if v.IsSet("default-top-k") {
		o.TopK = pointer(v.GetInt("default-top-k"))
	}
	return engine.New(o), nil
}

// backendOf checks the backend flags once, before anything is loaded.
func backendOf(v *viper.Viper) (func() (compute.Backend, error), error) {
	switch name := v.GetString("backend"); name {
	case "reference":
		return func() (compute.Backend, error) { return compute.NewReference(), nil }, nil
	case "cpu":
		o := cpu.Options{Threads: v.GetInt("threads"), Exact: v.GetBool("exact")}
		b, err := cpu.New(o)
		if err != nil {
			return nil, &usageError{err}
		}
		return func() (compute.Backend, error) { return cpu.New(o) }, b.Close()
	default:
		return nil, &usageError{fmt.Errorf("--backend must be cpu or reference, got '%s'", name)}
	}
}

// keys collects the API keys of flags, environment and file.
func keys(v *viper.Viper) ([]string, error) {
	list := v.GetStringSlice("api-key")
	if path := v.GetString("api-key-file"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--api-key-file: %w", err)
		}
		list = append(list, strings.Split(string(text), "\n")...)
	}
	var out []string
	for _, k := range list {
		if k = strings.TrimSpace(k); k != "" {
			out = append(out, k)
		}
	}
	return out, nil
}

// serve listens, then loads, then answers until ctx ends.
func serve(ctx context.Context, v *viper.Viper, stdout, stderr io.Writer) error {
	load, err := loadRequest(v)
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(v.GetString("log-level"))); err != nil {
		return &usageError{fmt.Errorf("--log-level must be debug, info, warn or error, got '%s'", v.GetString("log-level"))}
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	apiKeys, err := keys(v)
	if err != nil {
		return err
	}
	profile, ok := profiles[v.GetString("compat")]
	if !ok {
		return &usageError{fmt.Errorf("--compat must be sparkbar or mlx-lm, got '%s'", v.GetString("compat"))}
	}
	eng, err := newEngine(v, load)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(v.GetString("host"), strconv.Itoa(v.GetInt("port")))
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w; stop the program that uses the port, or choose another with --port", address, err)
	}
	srv := httpapi.New(eng, httpapi.Options{Keys: apiKeys, AllowedHosts: v.GetStringSlice("allow-host"), CORSOrigins: v.GetStringSlice("cors-origin"), Profile: profile(), Log: log})
	base := "http://" + ln.Addr().String()
	fmt.Fprintf(stdout, "listening on %s   (OpenAI base_url: %s/v1, Anthropic base_url: %s)\n", base, base, base)
	if len(apiKeys) > 0 {
		fmt.Fprintln(stdout, "auth: a key is required (Authorization: Bearer ... or x-api-key)")
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()

	loaded := make(chan error, 1)
	if v.GetBool("no-model") {
		fmt.Fprintf(stdout, "no model loaded; load one with: curl %s/admin/load -d '{\"model\":\"demo\"}'\n", base)
	} else {
		go func() {
			began := time.Now()
			st, err := eng.LoadFrom(ctx, load)
			if err == nil && st.Model != nil {
				m := st.Model
				drafter := m.Drafter
				if drafter == "" {
					drafter = "none"
				}
				fmt.Fprintf(stdout, "loaded %s in %.1f s: mode %s, drafter %s, context %d, backend %s\n", m.ID, time.Since(began).Seconds(), m.Mode, drafter, m.ContextWindow, m.Backend)
				fmt.Fprintf(stdout, "try: curl %s/v1/chat/completions -H 'content-type: application/json' -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is speculative decoding?\"}]}'\n", base)
			}
			loaded <- err
		}()
	}
	for {
		select {
		case err := <-loaded:
			if err != nil && ctx.Err() == nil {
				log.Error("the model could not be loaded; the server stays up", "error", err)
			}
			loaded = nil
		case err := <-served:
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return errors.Join(err, eng.Close(ctx))
		}
	}
}
