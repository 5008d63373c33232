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
		for left := 5; ; left-- { // another program may take what has become free at once
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Logf("%s cannot be listened on: %v", address, err)
				break
			}
			port := l.Addr().(*net.TCPAddr).Port
			if name, pid := PortOwner(port); name == "" || pid != os.Getpid() {
				t.Errorf("%s is held by %q (%d), want process %d", address, name, pid, os.Getpid())
			}
			l.Close()
			if name, pid := PortOwner(port); name == "" && pid == 0 {
				break
			} else if left == 0 {
				t.Fatalf("a free port is held by %q (%d)", name, pid)
			}
		}
	}
}
