// Package cases lists what this provider must get right because others did not, in README.md, and checks that each case has a test.
package cases
