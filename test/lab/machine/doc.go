// Package machine runs whole Linux machines on one Linux box: systemd, OpenSSH, containerd and a real kubelet in systemd-nspawn,
// over a Debian root file system, on network segments that cannot reach each other. It needs root, and the Debian packages of
// apt-packages.txt.
//
// Everything runs inside one enclosure (Enclose): process, mount and network namespaces of their own, that end with the process
// that made them, however it ends. Nothing leaks, and nothing but the segments made here can be reached from inside. The
// package writes below the user's cache directory (the root file system, once) and may raise fs.inotify.max_user_instances.
//
//	Enclose ─▶ NewSite ─▶ Site.Segment ─▶ Segment.Machine (a machine)
//	                                   └▶ Segment.Station (a place on the segment to run a program from)
package machine
