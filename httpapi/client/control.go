package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// Download is how far the files of a model have come.
type Download struct {
	ID    string `json:"id"`
	Model string `json:"model"` // as asked for
	Repo  string `json:"repo"`  // what is being fetched now: the model, or its drafter
	// State is planning, waiting (another process fetches the same),
	// downloading, paused, done, failed or cancelled.
	State          string  `json:"state"`
	BytesDone      int64   `json:"bytes_done"`
	BytesTotal     int64   `json:"bytes_total"` // 0 = not known yet
	BytesPerSecond float64 `json:"bytes_per_second"`
	ETASeconds     float64 `json:"eta_seconds"` // 0 = not known
	Error          string  `json:"error"`       // of one that failed or was cancelled
}

// Downloads lists the downloads under way, then the latest that have ended.
func (c *Client) Downloads(ctx context.Context) ([]Download, error) {
	r, err := get[struct {
		Downloads []Download `json:"downloads"`
	}](ctx, c, "/admin/downloads")
	return r.Downloads, err
}

// StartDownload fetches a model of the hub and, with drafter, the one that is
// published for it, without loading it.
func (c *Client) StartDownload(ctx context.Context, model string, drafter bool) (Download, error) {
	return post[Download](ctx, c, "/admin/downloads", struct {
		Model   string `json:"model"`
		Drafter bool   `json:"drafter"`
	}{model, drafter})
}

// PauseDownload stops a transfer until ResumeDownload.
func (c *Client) PauseDownload(ctx context.Context, id string) (Download, error) {
	return post[Download](ctx, c, "/admin/downloads/"+url.PathEscape(id)+"/pause", struct{}{})
}

// ResumeDownload lets a paused download go on.
func (c *Client) ResumeDownload(ctx context.Context, id string) (Download, error) {
	return post[Download](ctx, c, "/admin/downloads/"+url.PathEscape(id)+"/resume", struct{}{})
}

// CancelDownload ends a download, and the load that waits for it. What is here
// stays for the next try, unless cleanup is set.
func (c *Client) CancelDownload(ctx context.Context, id string, cleanup bool) (Download, error) {
	return post[Download](ctx, c, "/admin/downloads/"+url.PathEscape(id)+"/cancel", struct {
		Cleanup bool `json:"cleanup"`
	}{cleanup})
}

// Request is a generation under way.
type Request struct {
	ID           string  `json:"id"`
	State        string  `json:"state"` // queued, running
	Model        string  `json:"model"` // "" while it waits for its model
	Client       string  `json:"client"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"` // generated so far
	Seconds      float64 `json:"seconds"`
}

// Requests lists the generations under way.
func (c *Client) Requests(ctx context.Context) ([]Request, error) {
	r, err := get[struct {
		Requests []Request `json:"requests"`
	}](ctx, c, "/admin/requests")
	return r.Requests, err
}

// CancelRequest ends a generation, running or waiting.
func (c *Client) CancelRequest(ctx context.Context, id string) error {
	_, err := post[struct{}](ctx, c, "/admin/requests/"+url.PathEscape(id)+"/cancel", struct{}{})
	return err
}

// LocalModel is a model on the server's machine, or what there is of it.
type LocalModel struct {
	ID           string `json:"repo"`
	Path         string `json:"path"`
	Bytes        int64  `json:"size_bytes"`
	Size         string `json:"size"`
	Kind         string `json:"kind"`   // model, drafter
	Source       string `json:"source"` // cache, lmstudio, ollama, model_dirs, builtin
	Complete     bool   `json:"complete"`
	Reason       string `json:"reason"` // why it cannot be loaded, "" = it can
	Architecture string `json:"architecture"`
	Quantization string `json:"quantization"`
	Context      int    `json:"context"`
	RegistryID   string `json:"registry_id"`
	Fit          *Fit   `json:"fit"`
}

// Fit says whether a model fits into memory at its largest context.
type Fit struct {
	Verdict    string `json:"verdict"` // fits, tight, too_big, unknown
	Need       int64  `json:"need_bytes"`
	Available  int64  `json:"available_bytes"`
	MaxContext int    `json:"max_context"` // that fits; 0 = none
	Reason     string `json:"reason"`
}

// KnownModel is a published pair of target and drafter.
type KnownModel struct {
	ID               string `json:"id"`
	Target           string `json:"target"`
	Mode             string `json:"mode"`
	RAM              string `json:"ram"`
	Speedup          string `json:"speedup"`
	Fits             *bool  `json:"fits"` // nil = not known
	TargetInstalled  bool   `json:"target_installed"`
	DrafterInstalled bool   `json:"drafter_installed"`
}

// Inventory is GET /admin/models.
type Inventory struct {
	Installed []LocalModel `json:"installed"`
	Known     []KnownModel `json:"models"`
	Loaded    string       `json:"loaded"`
	ModelDirs []string     `json:"model_dirs"`
}

// Inventory lists the models on the server's machine and the published pairs.
func (c *Client) Inventory(ctx context.Context) (Inventory, error) {
	return get[Inventory](ctx, c, "/admin/models")
}

// Finding is something that the owner should know, with what to do about it.
type Finding struct {
	Code    string `json:"code"`
	Level   string `json:"level"` // attention, problem
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// Doctor examines the server's machine; ok is false if something does not work.
func (c *Client) Doctor(ctx context.Context) (ok bool, findings []Finding, err error) {
	r, err := get[struct {
		OK       bool      `json:"ok"`
		Findings []Finding `json:"findings"`
	}](ctx, c, "/doctor")
	return r.OK, r.Findings, err
}

// Machine is GET /machine; the parts about a model are nil without one.
type Machine struct {
	Chip struct {
		Name string `json:"name"`
	} `json:"chip"`
	Bandwidth struct {
		GBs    float64 `json:"gb_s"`
		Source string  `json:"source"`
	} `json:"bandwidth"`
	Memory struct {
		TotalBytes    int64  `json:"total_bytes"`
		Pressure      string `json:"pressure"`
		FreePercent   int    `json:"free_percent"`
		SwapUsedBytes int64  `json:"swap_used_bytes"`
	} `json:"memory"`
	Thermal struct {
		State   string  `json:"state"`   // nominal, fair, serious, critical; "" = not known
		Celsius float64 `json:"celsius"` // 0 = not known
	} `json:"thermal"`
	Roofline *struct {
		Last struct {
			Context    int     `json:"context"`
			CeilingTPS float64 `json:"ceiling_tps"` // 0 = not known
		} `json:"at_last_request"`
	} `json:"roofline"`
	Verdict *Verdict `json:"verdict"`
}

// Verdict says in words how well the machine is used.
type Verdict struct {
	Level    string   `json:"level"`
	Headline string   `json:"headline"`
	Findings []string `json:"findings"`
	Levers   []string `json:"levers"`
}

// Machine reads facts of the server's machine.
func (c *Client) Machine(ctx context.Context) (Machine, error) {
	return get[Machine](ctx, c, "/machine")
}

// Integration is what one client program needs to use the server.
type Integration struct {
	ID       string      `json:"id"`
	Name     string      `json:"name"`
	Protocol string      `json:"protocol"` // anthropic, openai
	Summary  string      `json:"summary"`
	Note     string      `json:"note"`
	Setup    []SetupStep `json:"setup"`
}

// SetupStep is one thing to do; the fields of its kind are set.
type SetupStep struct {
	Kind    string            `json:"kind"` // command, env, file, fields
	Label   string            `json:"label"`
	Command string            `json:"command"`
	Env     map[string]string `json:"env"`
	Path    string            `json:"path"`
	Content string            `json:"content"`
	Fields  map[string]string `json:"fields"`
}

// Integrations lists what client programs need.
func (c *Client) Integrations(ctx context.Context) ([]Integration, error) {
	r, err := get[struct {
		Integrations []Integration `json:"integrations"`
	}](ctx, c, "/admin/integrations")
	return r.Integrations, err
}

// Settings are the owner's settings by dotted key, and the file that holds them.
type Settings struct {
	Path   string                     `json:"path"`
	Values map[string]json.RawMessage `json:"values"`
	// Locked are settings that a flag or an environment variable of the server
	// decides, with its name.
	Locked map[string]string `json:"locked"`
}

// Settings reads the settings in force.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	return get[Settings](ctx, c, "/admin/settings")
}

// ChangeSettings sets the given keys, nil removes one; all or none.
func (c *Client) ChangeSettings(ctx context.Context, change map[string]any) (Settings, error) {
	return decode[Settings](c.do(ctx, http.MethodPatch, "/admin/settings", change))
}

// RaceArm is one way to run the loaded model.
type RaceArm struct {
	Mode       string   `json:"mode"`
	Cap        any      `json:"cap,omitempty"` // a number, "auto" or nil
	Confidence *float64 `json:"confidence,omitempty"`
}

// RaceRequest asks for a comparison; without arms the loaded mode runs against
// plain decoding.
type RaceRequest struct {
	Prompt    string    `json:"prompt"`
	Arms      []RaceArm `json:"arms,omitempty"`
	MaxTokens int       `json:"max_tokens,omitempty"`
	Thinking  *bool     `json:"thinking,omitempty"`
}

// Race compares ways to run the loaded model and hands over the events: start,
// arm_start, token, arm_done, verdict, error, done.
func (c *Client) Race(ctx context.Context, r RaceRequest, on func(Event) error) error {
	return c.Stream(ctx, "/admin/race", r, on)
}
