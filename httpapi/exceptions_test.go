package httpapi

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// exception is a place where an answer differs from a recorded one on purpose.
type exception struct {
	Golden   string // group/name of the recording, or a prefix with *
	Field    string // path in the body, "*" = any path that ends in the rest; "status" with Want = the whole answer
	Want     int    // the status that is right here, 0 = the status is as recorded
	Real     bool   // it is there on the real engine alone
	Decision string
	Note     string

	used bool
}

// exceptions are all of them, read once from testdata/exceptions.json.
var exceptions = sync.OnceValue(func() (all struct {
	Decisions map[string]string
	Rows      []*exception
}) {
	b, err := os.ReadFile(exceptionsFile)
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		panic(err)
	}
	return all
})

var exceptionsFile = func() string { // some tests change the folder
	wd, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return wd + "/testdata/exceptions.json"
}()

func (e *exception) covers(golden, field string) bool {
	prefix, many := strings.CutSuffix(e.Golden, "*")
	suffix, ends := strings.CutPrefix(e.Field, "*")
	return (e.Golden == golden || many && strings.HasPrefix(golden, prefix)) && (e.Field == field || ends && strings.HasSuffix("."+field, suffix))
}

// rerun is one way of sending the recorded requests of a group.
type rerun struct {
	group string // of recordings
	real  bool   // on the real engine
}

// excused finds the exception for a difference and marks it as used where the
// difference is there.
func (r rerun) excused(golden, field string, different bool) bool {
	for _, e := range exceptions().Rows {
		if e.Want == 0 && (r.real || !e.Real) && e.covers(r.group+"/"+golden, field) {
			e.used = e.used || different
			return true
		}
	}
	return false
}

// excepted is excused for a value of an answer.
func (r rerun) excepted(golden, path string, want, got *tree) bool {
	return r.excused(golden, path, !reflect.DeepEqual(want, got))
}

// rightStatus is the status that is right for a recording whose answer is not,
// 0 = the recorded one.
func (r rerun) rightStatus(golden string) int {
	for _, e := range exceptions().Rows {
		if e.Want != 0 && (r.real || !e.Real) && e.covers(r.group+"/"+golden, "status") {
			e.used = true
			return e.Want
		}
	}
	return 0
}

// checkUsed fails for exceptions that excuse nothing. It is called once all
// recordings of the group have been replayed in this way.
func (r rerun) checkUsed(t *testing.T) {
	t.Helper()
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // not all recordings were asked for
	}
	n := 0
	for _, e := range exceptions().Rows {
		if e.Real != r.real || !strings.HasPrefix(e.Golden, r.group+"/") {
			continue
		}
		n++
		if !e.used {
			t.Errorf("the exception %s %s excuses nothing", e.Golden, e.Field)
		}
	}
	t.Logf("%d exceptions for %+v, of %d in all", n, r, len(exceptions().Rows))
}

// TestExceptions: no exception without a decision, and no decision without one.
func TestExceptions(t *testing.T) {
	all := exceptions()
	decided := map[string]int{}
	seen := map[string]bool{}
	for _, e := range all.Rows {
		decided[e.Decision]++
		if all.Decisions[e.Decision] == "" {
			t.Errorf("%s %s: no decision %q", e.Golden, e.Field, e.Decision)
		}
		group, name, ok := strings.Cut(e.Golden, "/")
		if !ok || name == "" || e.Field == "" || group != "mlx-dspark" && group != "mlx_lm" {
			t.Errorf("not a row: %+v", e)
		}
		if key := e.Golden + " " + e.Field; seen[key] {
			t.Errorf("twice: %s", key)
		} else {
			seen[key] = true
		}
	}
	for d := range all.Decisions {
		if decided[d] == 0 {
			t.Errorf("the decision %q excuses nothing", d)
		}
	}
	t.Logf("%d exceptions by %d decisions", len(all.Rows), len(all.Decisions))
}
