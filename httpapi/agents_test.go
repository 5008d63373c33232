package httpapi_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/testneed"
	"sparkbar/httpapi"
	"sparkbar/httpapi/internal/enginetest"
)

// agents are programs that drive the server on their own. Each gets a home of
// its own with files in it, and may not call anybody else.
var agents = []struct {
	name  string
	path  string            // of the program below node_modules, * for the platform
	only  string            // platform that setup.sh installs it on, "" = all
	args  []string          // before the prompt
	files map[string]string // below its home; SERVER is the server's address
	env   []string
}{
	{
		name: "claude", path: "@anthropic-ai/claude-code-*/claude", args: []string{"-p", "--model", "sonnet", "--allowedTools=Bash"},
		env: []string{"ANTHROPIC_BASE_URL=SERVER", "ANTHROPIC_AUTH_TOKEN=" + clientKey, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_MAX_RETRIES=0"},
	},
	{
		name: "codex", path: ".bin/codex", args: []string{"exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"},
		files: map[string]string{".codex/config.toml": `model = "tiny-chat"
model_provider = "sparkbar"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.sparkbar]
name = "sparkbar"
base_url = "SERVER/v1"
env_key = "SPARKBAR_KEY"
wire_api = "responses"
`},
		env: []string{"SPARKBAR_KEY=" + clientKey},
	},
	{
		name: "opencode", path: "opencode-linux-x64-baseline/bin/opencode", only: "linux/amd64", args: []string{"run", "--model", "sparkbar/tiny-chat"},
		files: map[string]string{".config/opencode/opencode.json": `{"autoupdate":false,"share":"disabled","permission":{"bash":"allow"},"small_model":"sparkbar/tiny-chat",
 "provider":{"sparkbar":{"npm":"@ai-sdk/openai-compatible","name":"sparkbar","options":{"baseURL":"SERVER/v1","apiKey":"` + clientKey + `"},"models":{"tiny-chat":{"name":"tiny-chat","tool_call":true}}}}}`},
		env: []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"},
	},
	{
		name: "pi", path: ".bin/pi", args: []string{"--provider", "sparkbar", "--model", "tiny-chat", "--no-session", "-p"},
		files: map[string]string{".pi/agent/models.json": `{"providers":{"sparkbar":{"baseUrl":"SERVER/v1","api":"openai-completions","apiKey":"` + clientKey + `","models":[{"id":"tiny-chat"}]}}}`},
		env:   []string{"PI_OFFLINE=1", "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1"},
	},
}

// TestAgents: each agent shows a plain answer, and runs the command that the
// model asks for and shows what comes of it.
func TestAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	folder := clientFolder(t)
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			if platform := runtime.GOOS + "/" + runtime.GOARCH; a.only != "" && a.only != platform {
				t.Skipf("%s is tested on %s", a.name, a.only)
			}
			programs, err := filepath.Glob(filepath.Join(folder, "node_modules", a.path))
			if err != nil || len(programs) == 0 {
				testneed.Missing(t, a.name, "run `make setup`")
			}
			e := enginetest.New(enginetest.Script{})
			e.Answer(agentScript)
			base := listen(t, httpapi.New(e, httpapi.Options{Keys: []string{clientKey}}))
			home := t.TempDir()
			for name, text := range a.files {
				path := filepath.Join(home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "SERVER", base)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			work := filepath.Join(home, "work")
			if err := os.Mkdir(work, 0o755); err != nil {
				t.Fatal(err)
			}
			for prompt, want := range map[string]string{"greet me": "a scripted hello", "run it": "the command said sum=42"} {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				cmd := exec.CommandContext(ctx, programs[0], append(a.args, prompt)...)
				cmd.WaitDelay = time.Minute
				cmd.Dir = work
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "SHELL=/bin/sh", "TERM=dumb", "DO_NOT_TRACK=1", "NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost", "HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9"}
				for _, v := range a.env {
					cmd.Env = append(cmd.Env, strings.ReplaceAll(v, "SERVER", base))
				}
				out, err := cmd.CombinedOutput()
				cancel()
				if err != nil || !strings.Contains(string(out), want) {
					t.Errorf("%s: %v, %d requests\n%s", prompt, err, len(e.Requests()), out)
				}
			}
		})
	}
}

// agentScript answers with words, or first with a call of the agent's shell.
func agentScript(req engine.Request) enginetest.Script {
	var list []struct {
		Role    string
		Content any
	}
	_ = json.Unmarshal(req.Prompt.Messages, &list) // none: the answer below
	run, said := false, ""
	for _, m := range list {
		text, _ := json.Marshal(m.Content)
		switch m.Role {
		case "user":
			run = run || strings.Contains(string(text), "run it")
		case "tool":
			said = string(text)
		}
	}
	if i := strings.Index(said, "sum="); i >= 0 {
		return enginetest.Say("the command said ", said[i:i+6], ".")
	}
	var tools []struct{ Function struct{ Name string } }
	_ = json.Unmarshal(req.Prompt.Tools, &tools)
	for _, tool := range tools {
		arguments := `{"command":"echo sum=$((40+2))","description":"adds"}`
		switch tool.Function.Name {
		case "exec_command":
			arguments = `{"cmd":"echo sum=$((40+2))"}`
		case "bash", "Bash", "shell_command":
		default:
			continue
		}
		if run {
			return replay(engine.FinishToolCalls, call(0, "call_1", tool.Function.Name, ""), call(0, "", "", arguments))
		}
	}
	return enginetest.Say("a scripted ", "hello")
}
