//go:build !linux

package machine

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// PortOwner names the program that listens on a TCP port; "" and 0 where the
// system does not tell.
func PortOwner(port int) (name string, pid int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "lsof", "-nP", fmt.Sprintf("-iTCP:%d", port), "-sTCP:LISTEN", "-Fpc").Output()
	if err != nil {
		return "", 0
	}
	for line := range strings.Lines(string(out)) { // a field a line, its letter first
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "p") && pid == 0:
			pid, _ = strconv.Atoi(line[1:]) // 0 = not told
		case strings.HasPrefix(line, "c") && name == "":
			name = line[1:]
		}
	}
	return name, pid
}
