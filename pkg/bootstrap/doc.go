// Package bootstrap gives machines what a kubelet needs to introduce itself: a short-lived bootstrap token, and where the cluster is
// and which CA signs it. It writes bootstrap-token Secrets in kube-system, which it can create and delete but not read, and nothing
// else.
package bootstrap
