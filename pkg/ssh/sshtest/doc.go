// Package sshtest is an SSH server inside the test process: it accepts keys, counts what happens to it, can be made to stall at any
// stage, and hands commands to a function, such as Shell's, which runs them with the real shells of this machine. It decides
// nothing and writes only where its commands do.
package sshtest
