package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"sparkbar/engine/telemetry"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatRequest asks for an answer. Nil and empty fields keep the defaults.
type ChatRequest struct {
	Model           string    `json:"model,omitempty"`
	Messages        []Message `json:"messages"`
	MaxTokens       int       `json:"max_tokens,omitempty"`
	Temperature     *float64  `json:"temperature,omitempty"`
	TopP            *float64  `json:"top_p,omitempty"`
	TopK            *int      `json:"top_k,omitempty"`
	Seed            *int64    `json:"seed,omitempty"`
	Stop            []string  `json:"stop,omitempty"`
	EnableThinking  *bool     `json:"enable_thinking,omitempty"`
	ReasoningEffort string    `json:"reasoning_effort,omitempty"`
}

// ChatDelta is what came last: text, reasoning, or progress in reading the
// prompt (in tokens; a total of 0 is unknown).
type ChatDelta struct {
	Text, Reasoning string
	Done, Total     int
}

// ChatResult is a finished answer.
type ChatResult struct {
	ID           string
	Model        string
	Text         string
	Reasoning    string
	FinishReason string
	Stats        *telemetry.RequestSummary // nil if the server sends none
}

type chatChunk struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Choices []struct {
		Delta struct {
			Content          string  `json:"content"`
			ReasoningContent *string `json:"reasoning_content"`
			Reasoning        string  `json:"reasoning"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Stats *telemetry.RequestSummary `json:"x_mlx_dspark"`
	Error *struct{}                 `json:"error"`
}

// Chat streams an answer. on may be nil; its error ends the stream and is
// returned. A stream that breaks off is an error, never a short answer.
func (c *Client) Chat(ctx context.Context, r ChatRequest, on func(ChatDelta) error) (ChatResult, error) {
	body := struct {
		ChatRequest
		Stream bool `json:"stream"`
	}{r, true}
	resp, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return ChatResult{}, err
	}
	defer resp.Body.Close()
	var result ChatResult
	emit := func(d ChatDelta) error {
		if on == nil || d == (ChatDelta{}) {
			return nil
		}
		return on(d)
	}
	for events := newEventReader(resp.Body); ; {
		e, err := events.next()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return result, orCancelled(ctx, err)
		}
		var d ChatDelta
		if e.data == "[DONE]" {
			return result, nil
		}
		if e.comment != "" {
			if n, _ := fmt.Sscanf(e.comment, "keepalive %d/%d", &d.Done, &d.Total); n != 2 {
				continue
			}
			if err := emit(d); err != nil {
				return result, err
			}
			continue
		}
		var chunk chatChunk
		if err := json.Unmarshal([]byte(e.data), &chunk); err != nil {
			return result, fmt.Errorf("the server sent a chunk that is not JSON: %w", err)
		}
		if chunk.Error != nil {
			return result, orCancelled(ctx, errorOf(http.StatusInternalServerError, []byte(e.data)))
		}
		result.ID, result.Model = chunk.ID, chunk.Model
		if chunk.Stats != nil {
			result.Stats = chunk.Stats
		}
		for _, choice := range chunk.Choices {
			d.Text, d.Reasoning = choice.Delta.Content, choice.Delta.Reasoning
			if choice.Delta.ReasoningContent != nil {
				d.Reasoning = *choice.Delta.ReasoningContent
			}
			result.Text += d.Text
			result.Reasoning += d.Reasoning
			if choice.FinishReason != "" {
				result.FinishReason = choice.FinishReason
			}
			if err := emit(d); err != nil {
				return result, err
			}
		}
	}
}
