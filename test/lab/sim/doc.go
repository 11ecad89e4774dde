// Package sim simulates machines, hundreds of them in one process and without root: each is an SSH server that runs commands with
// real bash in a sandbox directory, a service manager behind a stand-in for systemctl, and a stand-in kubelet that joins the
// cluster the way a real one does. Machines lose power, reboot, change their host keys, hang, fill their disks, and count what is
// done to them.
//
// The package writes below its own temporary directory, and to the cluster only as kubelets do. Commands see their machine
// through a few stand-ins on PATH (bin/), the environment (SIM_*, KPSSH_STATE_DIR), and, for two files of /proc, by having
// their paths replaced in what is sent to the machine.
//
// It runs on Linux and on macOS as they come. A Mac has bash 3.2, and no /proc, flock or setsid: command utillinux stands in for the
// latter two, and the remote half of the transport has ways around the rest. Options.Portable takes these ways on Linux too.
package sim
