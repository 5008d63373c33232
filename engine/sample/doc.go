// Package sample holds the one sampling rule of the server: how a row of
// logits becomes a token, for both HTTP dialects, for target and drafter
// alike.
//
// What lives here: the sampling parameters and their validation ([Params]);
// logit bias and penalties ([Penalizer]); the truncated, tempered
// distribution of a row ([Sampler.Dist]: top_p, min_p, XTC and top_k on
// untempered log-probabilities, temperature last); the Threefry generator of
// MLX ([RNG]); greedy and exact speculative acceptance ([AcceptGreedy],
// [Accept]); log-probabilities for reports ([Logprobs]).
//
// What must never live here: model forwards, caches, token text, scheduling,
// wire formats. Everything works on plain float32 rows and int32 token ids.
//
// Nothing sorts the vocabulary: thresholds come from a bucketed selection in
// one pass. All scratch memory belongs to a [Sampler], [Dist] or [Penalizer],
// so a steady decode loop allocates nothing. None of these types is safe for
// concurrent use; a request owns its own.
//
// Read [Sampler] first.
package sample
