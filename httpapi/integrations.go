package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/gin-gonic/gin"
)

// integrations is GET /admin/integrations: what each client needs to use this
// server. It holds the API key, so it needs the key where one is set.
type integrations struct {
	BaseURL      string        `json:"base_url"`
	Model        string        `json:"model"`
	Integrations []integration `json:"integrations"`
}

type integration struct {
	ID       string      `json:"id"`
	Name     string      `json:"name"`
	Protocol string      `json:"protocol"` // anthropic, openai
	Summary  string      `json:"summary"`
	Setup    []setupStep `json:"setup"`
	Note     string      `json:"note,omitempty"`
}

// setupStep is one thing to do; the fields of its kind are set.
type setupStep struct {
	Kind    string            `json:"kind"` // command, env, file, fields
	Label   string            `json:"label"`
	Command string            `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Path    string            `json:"path,omitempty"`
	Content string            `json:"content,omitempty"`
	Fields  map[string]string `json:"fields,omitempty"`
}

// placeholderKey stands where clients insist on a key and the server has none.
// It is also the name that the snippets give to this server in the files of
// clients, so that those written for mlx-dspark go on to work.
const placeholderKey = "mlx-dspark"

func (s *Server) adminIntegrations(c *gin.Context) *apiError {
	all, err := s.integrations(c)
	if err != nil {
		return err
	}
	s.reply(c, http.StatusOK, all)
	return nil
}

// integrations are for the address that the request went to.
func (s *Server) integrations(c *gin.Context) (integrations, *apiError) {
	st, err := s.ready()
	if err != nil {
		return integrations{}, err
	}
	scheme := "http"
	if c.Request.TLS != nil || s.options.BehindProxy && strings.EqualFold(c.GetHeader("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	p := snippets{base: scheme + "://" + c.Request.Host, model: st.Model.ID, key: placeholderKey, context: st.Model.ContextWindow, out: st.MaxTokensCap}
	if key := s.shownKey(c.Request); key != "" {
		p.key, p.keyed = key, true
	}
	if p.context > 0 {
		p.out = min(p.out, p.context)
	}
	return integrations{p.base, p.model, p.list()}, nil
}

// snippets makes the texts. What clients need and why is told in their own
// documentation; versions of mid 2026 were measured.
type snippets struct {
	base, model, key string
	keyed            bool // the key is a real one
	context, out     int
}

// list is all integrations; the first five are those of the reference.
func (p snippets) list() []integration {
	command := func(label, text string) setupStep { return setupStep{Kind: "command", Label: label, Command: text} }
	file := func(label, path, content string) setupStep {
		return setupStep{Kind: "file", Label: label, Path: path, Content: content}
	}
	fields := func(kv ...string) setupStep {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return setupStep{Kind: "fields", Label: "Enter these", Fields: m}
	}
	v1 := p.base + "/v1"
	return []integration{
		{ID: "claude-code", Name: "Claude Code", Protocol: "anthropic", Summary: "Anthropic's coding agent in the terminal, answered by the local model.",
			Setup: []setupStep{command("Start it for one session; nothing is left behind", p.claude()),
				{Kind: "env", Label: "Or set these yourself", Env: p.claudeEnv()}},
			Note: "Only the started process is configured; other sessions and the login stay as they are."},
		{ID: "codex", Name: "Codex CLI", Protocol: "openai", Summary: "OpenAI's coding agent in the terminal, through a profile of its own.",
			Setup: []setupStep{file("Write this profile", "~/.codex/mlx-dspark.config.toml", p.codex()),
				command("Then start", "MLX_DSPARK_KEY="+shellQuote(p.key)+" codex --profile mlx-dspark")},
			Note: "Codex speaks the Responses API only, which the server has at /v1/responses. config.toml stays untouched."},
		{ID: "opencode", Name: "OpenCode", Protocol: "openai", Summary: "The open-source coding agent, through a provider of its own.",
			Setup: []setupStep{file("Add to opencode.json of a project, or to ~/.config/opencode/opencode.json", "opencode.json", p.opencode()),
				command("Then start", "opencode --model mlx-dspark/"+shellQuote(p.model))}},
		{ID: "pi", Name: "pi", Protocol: "anthropic", Summary: "The minimal coding agent, over the Anthropic API.",
			Setup: []setupStep{file("Add to ~/.pi/agent/models.json", "~/.pi/agent/models.json", p.pi()),
				command("Then start", "pi --provider mlx-dspark --model "+shellQuote(p.model))}},
		{ID: "openai-compatible", Name: "Other OpenAI-compatible programs", Protocol: "openai", Summary: "Whatever lets a base URL be set.",
			Setup: []setupStep{fields("Base URL", v1, "API key", p.key, "Model", p.model)}},

		{ID: "continue", Name: "Continue", Protocol: "openai", Summary: "The assistant for editors and terminals.",
			Setup: []setupStep{file("Write ~/.continue/config.yaml, or add the model to it", "~/.continue/config.yaml", p.continueYAML())}},
		{ID: "zed", Name: "Zed", Protocol: "openai", Summary: "The editor's assistant.",
			Setup: []setupStep{file("Add to its settings", "~/.config/zed/settings.json", p.zed()), command("Give the key", "export MLX_DSPARK_API_KEY="+shellQuote(p.key))},
			Note:  "Zed reads the key from the environment or from its provider settings, never from this file."},
		{ID: "vscode", Name: "VS Code Copilot", Protocol: "openai", Summary: "Chat with a model of your own.",
			Setup: []setupStep{file("Command \"Chat: Open Language Models (JSON)\", then add", vscodeFolder()+"/chatLanguageModels.json", p.vscode())}},
		{ID: "cline", Name: "Cline", Protocol: "openai", Summary: "The coding agent for editors and terminals. Roo Code has the same fields.",
			Setup: []setupStep{command("In the terminal", fmt.Sprintf("cline auth -p openai -k %s -m %s -b %s", shellQuote(p.key), shellQuote(p.model), v1)),
				fields("API Provider", "OpenAI Compatible", "Base URL", v1, "API Key", p.key, "Model ID", p.model, "Context Window Size", fmt.Sprint(p.context))}},
		{ID: "aider", Name: "Aider", Protocol: "openai", Summary: "Pair programming in the terminal.",
			Setup: []setupStep{command("Start", fmt.Sprintf("OPENAI_API_BASE=%s OPENAI_API_KEY=%s aider --model openai/%s", v1, shellQuote(p.key), shellQuote(p.model))),
				file("Tell it the context window", ".aider.model.metadata.json", p.aider())}},
		{ID: "qwen-code", Name: "Qwen Code", Protocol: "openai", Summary: "The coding agent in the terminal.",
			Setup: []setupStep{command("Start", fmt.Sprintf("OPENAI_BASE_URL=%s OPENAI_API_KEY=%s OPENAI_MODEL=%s qwen --auth-type openai", v1, shellQuote(p.key), shellQuote(p.model)))}},
		{ID: "jetbrains", Name: "JetBrains AI Assistant", Protocol: "openai", Summary: "Settings › Tools › AI Assistant › Providers & API keys › OpenAI-compatible.",
			Setup: []setupStep{fields("URL", v1, "API key", p.key, "Tool calling", "on")}},
		p.xcode(),
		{ID: "curl", Name: "curl", Protocol: "openai", Summary: "A first request by hand.",
			Setup: []setupStep{command("Ask", fmt.Sprintf("curl %s/chat/completions -H %s -H 'Content-Type: application/json' -d %s", v1, shellQuote("Authorization: Bearer "+p.key),
				shellQuote(fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":"Say ready"}],"max_tokens":16}`, encode(p.model)))))}},
		{ID: "openai-sdk", Name: "OpenAI SDK", Protocol: "openai", Summary: "Python and JavaScript read these.",
			Setup: []setupStep{{Kind: "env", Label: "Environment", Env: map[string]string{"OPENAI_BASE_URL": v1, "OPENAI_API_KEY": p.key}}}},
		{ID: "anthropic-sdk", Name: "Anthropic SDK", Protocol: "anthropic", Summary: "Python and JavaScript read these.",
			Setup: []setupStep{{Kind: "env", Label: "Environment", Env: map[string]string{"ANTHROPIC_BASE_URL": p.base, "ANTHROPIC_API_KEY": p.key}}},
			Note:  "The base URL has no /v1 here: the SDK adds it."},
	}
}

func (p snippets) claude() string {
	c := "sparkbar claude"
	if p.base != "http://127.0.0.1:8080" {
		c += " --url " + shellQuote(p.base)
	}
	if p.keyed {
		c += " --api-key " + shellQuote(p.key)
	}
	return c
}

// claudeEnv makes Claude Code use one local model for every purpose, know its
// real limits, and leave out what would defeat the prefix cache.
func (p snippets) claudeEnv() map[string]string {
	env := map[string]string{"ANTHROPIC_BASE_URL": p.base, "ANTHROPIC_AUTH_TOKEN": p.key, "ANTHROPIC_MODEL": p.model, "ANTHROPIC_SMALL_FAST_MODEL": p.model,
		"CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
	for _, alias := range []string{"OPUS", "SONNET", "HAIKU", "FABLE"} {
		env["ANTHROPIC_DEFAULT_"+alias+"_MODEL"] = p.model
		env["ANTHROPIC_DEFAULT_"+alias+"_MODEL_NAME"] = p.model + " (Sparkbar)"
	}
	if p.context > 0 {
		env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = fmt.Sprint(p.context)
	}
	if p.out > 0 {
		env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = fmt.Sprint(p.out)
	}
	return env
}

func (p snippets) codex() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model_provider = \"mlx-dspark\"\nmodel = %s\n", encode(p.model))
	if p.context > 0 {
		fmt.Fprintf(&b, "model_context_window = %d\nmodel_auto_compact_token_limit = %d\n", p.context, p.context*4/5)
	}
	fmt.Fprintf(&b, "web_search = \"disabled\"\n\n[model_providers.mlx-dspark]\nname = \"mlx-dspark\"\nbase_url = %s\nwire_api = \"responses\"\nenv_key = \"MLX_DSPARK_KEY\"\nstream_idle_timeout_ms = 600000\n", encode(p.base+"/v1"))
	return b.String()
}

func (p snippets) opencode() string {
	model := map[string]any{"name": p.model}
	if p.context > 0 {
		model["limit"] = map[string]int{"context": p.context, "output": p.out}
	}
	return pretty(map[string]any{"$schema": "https://opencode.ai/config.json", "provider": map[string]any{"mlx-dspark": map[string]any{
		"npm": "@ai-sdk/openai-compatible", "name": "Sparkbar (this machine)", "options": map[string]string{"baseURL": p.base + "/v1", "apiKey": p.key},
		"models": map[string]any{p.model: model}}}})
}

func (p snippets) pi() string {
	model := map[string]any{"id": p.model}
	if p.context > 0 {
		model["contextWindow"], model["maxTokens"] = p.context, p.out
	}
	return pretty(map[string]any{"providers": map[string]any{"mlx-dspark": map[string]any{"baseUrl": p.base, "api": "anthropic-messages", "apiKey": p.key, "models": []any{model}}}})
}

func (p snippets) continueYAML() string {
	q := func(s string) string { return string(encode(s)) } // JSON strings are YAML
	return "name: Local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: " + q(p.model+" (this machine)") + "\n    provider: openai\n    model: " + q(p.model) +
		"\n    apiBase: " + q(p.base+"/v1") + "\n    apiKey: " + q(p.key) + "\n    roles: [chat, edit, apply]\n    capabilities: [tool_use]\n" +
		fmt.Sprintf("    defaultCompletionOptions: { contextLength: %d, maxTokens: %d }\n", p.context, p.out)
}

func (p snippets) zed() string {
	return pretty(map[string]any{"language_models": map[string]any{"openai_compatible": map[string]any{"mlx-dspark": map[string]any{"api_url": p.base + "/v1",
		"available_models": []any{map[string]any{"name": p.model, "display_name": p.model + " (this machine)", "max_tokens": p.context, "max_output_tokens": p.out,
			"capabilities": map[string]bool{"tools": true, "images": false, "parallel_tool_calls": false, "prompt_cache_key": false}}}}}}})
}

// vscodeFolder is where VS Code keeps a user's settings.
func vscodeFolder() string {
	if runtime.GOOS == "darwin" {
		return "~/Library/Application Support/Code/User"
	}
	return "~/.config/Code/User"
}

func (p snippets) vscode() string {
	return pretty([]any{map[string]any{"name": "mlx-dspark", "vendor": "customendpoint", "apiKey": p.key, "apiType": "chat-completions",
		"models": []any{map[string]any{"id": p.model, "name": p.model + " (this machine)", "url": p.base + "/v1/chat/completions", "toolCalling": true, "vision": false,
			"maxInputTokens": max(p.context-p.out, p.context/2), "maxOutputTokens": p.out}}}})
}

func (p snippets) aider() string {
	return pretty(map[string]any{"openai/" + p.model: map[string]any{"max_input_tokens": p.context, "max_output_tokens": p.out, "input_cost_per_token": 0,
		"output_cost_per_token": 0, "litellm_provider": "openai", "mode": "chat"}})
}

func (p snippets) xcode() integration {
	port := "80"
	if i := strings.LastIndexByte(p.base, ':'); i > len("https:") {
		port = p.base[i+1:]
	}
	x := integration{ID: "xcode", Name: "Xcode", Protocol: "openai", Summary: "Settings › Intelligence › add a chat provider › locally hosted (26.3 or newer).",
		Setup: []setupStep{{Kind: "fields", Label: "Enter these", Fields: map[string]string{"Port": port}}}}
	if p.keyed {
		x.Note = "Xcode sends no key, so it cannot connect to this server while an API key is set."
	}
	return x
}

// pretty is JSON for a file that people read.
func pretty(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic("httpapi: a snippet that does not encode: " + err.Error())
	}
	return string(b) + "\n"
}

// shellQuote makes one word of a shell of it.
func shellQuote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
