// Package quickstart runs the commands of docs/quick-start.md as they stand there, as a newcomer would: with helm and kubectl, against
// a real API server. What the newcomer has and a test has not is stood in for: the machines are simulated, and a worker node runs
// the controllers' Deployments as processes.
package quickstart
