// Package verified is what Verified execution rests on: signatures over scripts (SSHSIG), manifests that say what a signed script is for, and the
// envelopes that carry both to the shim on a machine. It decides whether a script may be sent at all, before a machine is dialled; the shim decides
// the same again on the machine, with ssh-keygen.
//
// It reads no files, knows no clock and writes nothing.
package verified
