package engine

import (
	"encoding/json"
	"time"

	"sparkbar/engine/chat"
	"sparkbar/engine/sample"
	"sparkbar/engine/telemetry"
)

// Modes are the values of LoadRequest.Mode, in the order in which they are shown.
var Modes = []string{"auto", "dspark", "dflash", "lookup", "draft", "baseline"}

// Efforts are the values of reasoning_effort, from little thought to much.
var Efforts = chat.Efforts

// Prompt is what a model shall answer or continue: exactly one of Messages,
// Text and Tokens is set.
type Prompt struct {
	// Messages is an OpenAI-shaped list of message objects. All keys and their
	// order reach the chat template; content parts are flattened to text.
	Messages json.RawMessage
	// Tools is an OpenAI-shaped list of tools, or nil.
	Tools json.RawMessage
	// Kwargs are handed to the chat template (enable_thinking,
	// reasoning_effort, ...), over the defaults of the server and the model.
	Kwargs map[string]any
	// MustCall makes the answer a call of one of Tools, of CallName if that is set:
	// the prompt ends in the beginning of one, and the model thinks nothing before.
	// It has no effect on models whose format of calls is not known.
	MustCall bool
	CallName string
	// ContinueFinal leaves the last message open instead of starting a new turn.
	ContinueFinal bool
	// FoldSystem accepts system messages anywhere: where the template refuses
	// them they become part of the user turn beside them.
	FoldSystem bool
	// MLXRules reads the conversation and the answer as mlx_lm.server does:
	// content parts are joined without a separator, a message without content is
	// an empty one, models without a chat template get prefixes by role, thoughts
	// and tool calls may begin anywhere, log-probabilities are those after
	// penalties.
	MLXRules bool
	// RoleMapping is a JSON object of prefixes by role (and "stop") for models
	// without a chat template, or nil.
	RoleMapping json.RawMessage

	Text   *string // raw text; special tokens are added as the tokenizer does
	Tokens []int32 // raw ids
}

// Request is one generation. Zero values mean "default".
type Request struct {
	// Model is the id of the model that shall answer, "" = the loaded one. A
	// model that is on this machine is loaded first; see Engine.Generate.
	Model     string
	ID        string // shown in telemetry, logs and the response
	Client    string // who asks, for fairness between clients; may be empty
	Prompt    Prompt
	MaxTokens int // 0 = the server's default; always cut to the server's cap and the window
	Sampling  Sampling
	Stop      []string
	// IgnoreEnd goes on after tokens that end an answer, up to MaxTokens: for
	// benchmarks, whose answers must be of one length.
	IgnoreEnd bool
	// Logprobs is the number of alternatives to report per token; -1 = none at all.
	Logprobs int
	// EchoPrompt reports the tokens of the prompt too: with Logprobs of 0 or more the
	// log-probability of each but the first after those before it, for which the whole
	// prompt is read, whatever of it is stored.
	EchoPrompt bool
	// Reasoning splits thoughts from the answer; Tools parses tool calls: with
	// StreamCalls while they are being written, where the format allows it, else
	// once they are complete. A call of a function that is not among the tools of
	// the prompt, if there are any, is broken.
	Reasoning, Tools, StreamCalls bool
	// OneCall ends the answer with its first tool call.
	OneCall bool
	// Adapter is the folder of an adapter (LoRA, DoRA, full) for this request, below
	// Options.ModelRoot; "" = the one that the model was loaded with, if any.
	Adapter string
	// Drafter is the drafter that shall help with this request, named like a
	// model; "" = whichever is loaded. Another than the loaded one is loaded
	// first, with the model; see Engine.Generate.
	Drafter string
	// MaxDraft is the number of drafts per round: nil = as loaded, 0 = none, so
	// that the model decodes plainly.
	MaxDraft *int
	// Arm runs the request in another way than the model was loaded for, and
	// without the prefix cache; nil = as loaded.
	Arm *Arm
}

// Arm is one way to run the loaded model, for comparing them.
type Arm struct {
	Mode string // one of Engine.Arms
	// Cap is the number of drafts per round, 0 = as loaded (for another mode
	// than the loaded one: its default). Auto lets the controller choose.
	Cap  int
	Auto bool
	// Confidence cuts drafts of a dspark drafter; nil = as loaded.
	Confidence *float64
}

// Sampling holds what the request says about sampling; nil fields fall back to
// the server's flags, then to the model's generation_config, then to the
// documented default (see Engine.Generate).
type Sampling struct {
	Temperature, TopP, MinP *float64
	TopK                    *int
	Seed                    *uint64
	// Params carries the fields without a default chain (penalties, bias, xtc).
	Params sample.Params
}

// Token is one generated token. Text is the token's own text as the vocabulary
// has it; Bytes are its true bytes.
type Token struct {
	ID      int32
	Text    string
	Bytes   []byte
	Logprob float64
	Top     []TokenProb // Request.Logprobs entries, best first
}

// TokenProb is an alternative at one position.
type TokenProb struct {
	ID      int32
	Text    string
	Bytes   []byte
	Logprob float64
}

// ToolCall is a call that the model made. Arguments is a JSON object.
type ToolCall struct {
	Index     int
	ID        string
	Name      string
	Arguments string
	// Dropped, in a delta of Request.StreamCalls: the call came to nothing, and
	// what was told of it is void.
	Dropped bool
}

// Delta is what one round added. Text and Reasoning never hold a broken code
// point or a part of a stop string.
type Delta struct {
	Reasoning string
	Text      string
	// ToolCall is a piece of a call: the first piece of an index has ID and
	// Name, Arguments are to be concatenated.
	ToolCall *ToolCall
	Tokens   []Token
	// Prefill reports progress while the prompt is read; nothing else is set then.
	Prefill *Progress
	// Prompt has the tokens of the prompt, see Request.EchoPrompt; it comes once,
	// before all text, and nothing else is set then.
	Prompt []Token
}

// Progress counts prompt tokens.
type Progress struct{ Done, Total int }

// FinishReason says why a generation ended.
type FinishReason string

// The reasons. A cancelled generation ends with an error instead.
const (
	FinishStop      FinishReason = "stop"       // end token or stop string
	FinishLength    FinishReason = "length"     // token limit or context window
	FinishToolCalls FinishReason = "tool_calls" // at least one call was parsed
)

// Result is a finished generation.
type Result struct {
	Model        string // id of the model that answered
	Text         string
	Reasoning    string
	ToolCalls    []ToolCall
	BrokenCalls  []string // why calls that the model began could not be used; their markup is left out
	Tokens       []Token
	Prompt       []Token // see Request.EchoPrompt
	PromptTokens []int32
	FinishReason FinishReason
	StopString   string                   // the stop string that ended it, if one did
	Stats        telemetry.RequestSummary // usage, rates, acceptance: the x_mlx_dspark block
	Prefill      time.Duration            // that reading the prompt took; Stats has it in whole milliseconds
	TTFT         time.Duration            // until the first token, so too
}

// LoadRequest asks for a model. Nil fields keep the server's setting.
type LoadRequest struct {
	Model               string // "demo", a folder, a GGUF file, or the id of a local model
	Drafter             string // like Model; "" = the pair's own
	Adapter             string // folder of an adapter (LoRA, DoRA, full), "" = none; the owner's only
	Mode                string // auto (or ""), dspark, dflash, lookup, draft, baseline
	MaxDraft            *int   // fixed cap; 0 = the controller ("auto")
	LookupDrafts        *bool
	ConfidenceThreshold *float64
	ContextWindow       *int           // 0 = the model's own maximum
	KVBits              *int           // 0, 4, 8
	KVGroup             *int           // values that share a scale: 32, 64, 128
	LookupLongDraft     *int           // longest copy from the context, in tokens
	ChatTemplate        string         // in Jinja, instead of the model's own; "" = that
	TemplateArgs        map[string]any // further variables of the template
	DrafterWindow       *int           // 0 = the whole context
	DrafterBits         *int
	Warmup              *bool
	EnableThinking      *bool
	ReasoningEffort     *string
	MemoryGuard         *bool    // give memory back when the system is short of it; true
	CPUSplit            *float64 // what the CPU makes of a prompt's layers beside a GPU, [0, 1); nil = measured
	// Unused lists accepted keys that this backend has no use for; Status
	// reports them in a warning.
	Unused []string
}

// auto reports that the mode is left to the engine.
func (r *LoadRequest) auto() bool { return r.Mode == "" || r.Mode == "auto" }

// State is where the engine stands.
type State string

// The states of the engine.
const (
	StateIdle        State = "idle"   // nothing loaded
	StateAsleep      State = "asleep" // nothing loaded, but the next request loads what was
	StateResolving   State = "resolving"
	StateDownloading State = "downloading"
	StateLoading     State = "loading"
	StateWarming     State = "warming"
	StateReady       State = "ready"
	StateSwapping    State = "swapping" // loading another model while one still serves
	StateUnloading   State = "unloading"
)

// Warning is a condition that the owner should know.
type Warning struct {
	Code    string  `json:"code"`
	Level   string  `json:"level"` // attention, problem
	Message string  `json:"message"`
	Action  *string `json:"action"`
}

// ModelInfo describes a loaded model.
type ModelInfo struct {
	ID                string // last path component
	Target            string // as given
	Path              string // absolute, where Target is a path; else ""
	Drafter           string // as given, "" = none
	Mode              string // dspark, dflash, lookup, draft, baseline
	Architecture      string
	ContextWindow     int
	MaxDraft          int // 0 = the controller decides
	LookupDrafts      bool
	Confidence        float64
	KVBits            int
	DrafterWindow     int
	Warmup            bool
	Vocab             int
	WeightBytes       int64
	DrafterBytes      int64
	Weights           telemetry.Footprint  // of the target, as stored
	DrafterWeights    *telemetry.Footprint // nil without a drafter of files
	KVBytesPerToken   int64                // of the target's cache
	SupportsEffort    bool
	ThinkingDefault   bool
	ReasoningEffort   string
	LoadedAt          time.Time
	Backend           string // cpu, metal, reference
	SupportsReasoning bool
	SupportsTools     bool
}

// LoadProgress is how far a load has come. Totals are 0 while unknown.
type LoadProgress struct {
	Model      string    `json:"model"`
	BytesDone  int64     `json:"bytes_done"`
	BytesTotal int64     `json:"bytes_total"`
	Download   *Download `json:"-"` // while files are fetched
}

// Download is how far the files of a model have come.
type Download struct {
	ID             string // for PauseDownload, ResumeDownload and CancelDownload
	Model          string // as asked for
	Repo           string // what is being fetched now: the model, or its drafter
	State          string // of the download, see models.Progress
	BytesDone      int64
	BytesTotal     int64 // 0 = not known yet
	BytesPerSecond float64
	ETA            time.Duration // 0 = not known
	Error          string        // of one that failed or was cancelled
}

// Status is a snapshot of the engine.
type Status struct {
	State     State
	Model     *ModelInfo    // the model that answers now, nil if none
	Loading   *LoadProgress // the load under way, nil if none
	LastError string        // of the last failed load; cleared by the next load or unload
	Warnings  []Warning
	InFlight  int // generations running
	Queued    int // generations waiting
	Version   string
	StartedAt time.Time
	// MaxTokensDefault and MaxTokensCap are the server's limits.
	MaxTokensDefault, MaxTokensCap int
	Guard                          GuardStatus
	// CPUSplit is the CPU's fraction of the prompts of Model beside a GPU, by the width
	// of a layer; nil = none. CPUSplitEnded is what it was before memory got short.
	CPUSplit, CPUSplitEnded map[int]float64
}

// ErrorKind classifies errors for the dialects.
type ErrorKind string

// The kinds, with the HTTP status that suits each.
const (
	ErrNoModel       ErrorKind = "no_model"               // 503
	ErrLoading       ErrorKind = "loading"                // 503
	ErrBusy          ErrorKind = "busy"                   // 429
	ErrInvalid       ErrorKind = "invalid"                // 400
	ErrContextLength ErrorKind = "context_length"         // 400
	ErrModelNotFound ErrorKind = "model_not_found"        // 404
	ErrLoadFailed    ErrorKind = "load_failed"            // 400: the files are at fault
	ErrDownload      ErrorKind = "download"               // 502: the hub or the way to it
	ErrCancelled     ErrorKind = "cancelled"              // 409
	ErrInternal      ErrorKind = "internal"               // 500
	ErrShuttingDown  ErrorKind = "server_is_stopping_now" // 503
)

// Error is every error that the engine returns to a caller. Message tells the
// user what to do; Field names the request field at fault, if one is.
type Error struct {
	Kind    ErrorKind
	Field   string
	Message string
	Cause   error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }
