package chart

// Helm is the path of the pinned helm, built if need be, for tests that run the commands of a document.
func Helm() (string, error) { return helm() }
