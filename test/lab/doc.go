// Package lab runs real Kubernetes control planes on one machine, without root, containers or downloads other than Go
// modules: etcd, kube-apiserver, scheduler, controller-manager and kubelet come out of one multi-call binary that is built
// once and cached (Binaries), and StartControlPlane makes a cluster of them in a temporary directory, in seconds.
//
// The package writes below the user's cache directory (the binary) and below one temporary directory per control plane, and
// to the control plane itself: CRDs, bootstrap RBAC and kube-public/cluster-info. Everything it starts dies with it.
package lab
