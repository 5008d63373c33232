package machine

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// TestPortOwner: the holder of a port is named, a free one has none.
func TestPortOwner(t *testing.T) {
	if _, err := exec.LookPath("lsof"); err != nil && runtime.GOOS != "linux" {
		t.Skip("lsof is not here")
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s cannot be listened on: %v", address, err)
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		if name, pid := PortOwner(port); name == "" || pid != os.Getpid() {
			t.Errorf("%s is held by %q (%d), want process %d", address, name, pid, os.Getpid())
		}
		l.Close()
		if name, pid := PortOwner(port); name != "" || pid != 0 {
			t.Errorf("a free port is held by %q (%d)", name, pid)
		}
	}
}
