// Package jinja renders chat templates: the Jinja dialect that model
// repositories ship in tokenizer_config.json or chat_template.jinja, with the
// behaviour of transformers' environment (Jinja 3.1, immutable sandbox,
// trim_blocks and lstrip_blocks on, autoescape off, loop controls, the
// generation tag, tojson without HTML escaping, raise_exception, strftime_now).
//
// Here live the lexer, the parser, a tree-walking evaluator and the slice of
// Python that templates can see: its numbers, its formatting, its string, list
// and dict methods, its truth and its printing.
//
// A template comes with a downloaded model, so it is untrusted. Nothing a
// template can name reaches outside the values it was given, and Limits bound
// the work, the nesting and the memory of one rendering.
//
// What must never live here: anything that knows what a message, a role or a
// tool is (that is package chat), file access, template loading and
// inheritance, HTML autoescaping. Left out on purpose: the lipsum global and
// the filters urlize and pprint, which no chat template needs.
//
// Read Template first: Compile makes one, Render uses it. Map, the ordered
// dict that values are built from, comes second.
package jinja
