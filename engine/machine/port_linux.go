package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PortOwner names the program that listens on a TCP port; "" and 0 where the
// system does not tell (that of another user, say).
func PortOwner(port int) (name string, pid int) {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for _, inode := range listening(string(text), port) {
			sockets["socket:["+inode+"]"] = true
		}
	}
	if len(sockets) == 0 {
		return "", 0
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || !sockets[to] {
			continue
		}
		id := strings.Split(link, "/")[2]
		if pid, err := strconv.Atoi(id); err == nil {
			comm, _ := os.ReadFile("/proc/" + id + "/comm")
			return strings.TrimSpace(string(comm)), pid
		}
	}
	return "", 0
}

// listening finds the sockets of a table of the kernel that listen on a port.
func listening(table string, port int) (inodes []string) {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		const listen = "0A"
		if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == listen {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
