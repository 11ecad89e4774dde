// Command pause does nothing until it is told to stop. It is the sandbox and the workload of the lab's machines, which have no
// registry to pull images from.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
}
