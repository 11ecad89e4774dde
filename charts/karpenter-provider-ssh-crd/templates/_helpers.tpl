{{/* Whose a CRD is, in a word: absent, ours (helm would say so too), or foreign. Takes a list of the root and the CRD's name. Without a cluster
every CRD is absent. */}}
{{- define "kpssh-crd.owner" -}}
{{- $root := index . 0 -}}
{{- $existing := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1) -}}
{{- $annotations := dig "metadata" "annotations" dict $existing -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- $managed := eq "Helm" (dig "metadata" "labels" "app.kubernetes.io/managed-by" "" $existing) -}}
{{- if not $existing -}}
absent
{{- else if and $managed (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace) -}}
ours
{{- else -}}
foreign
{{- end -}}
{{- end }}

{{/* Whether the CRD in the cluster says what the given one says: "true", or nothing. Takes the CRD. conversion is a default of the API server. */}}
{{- define "kpssh-crd.same" -}}
{{- $existing := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .metadata.name -}}
{{- if eq (omit (dig "spec" dict $existing) "conversion" | toJson) (.spec | toJson) -}}
true
{{- end -}}
{{- end }}

{{/* A CRD that outlives its release. Takes the CRD. */}}
{{- define "kpssh-crd.keep" -}}
{{- $_ := set .metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (.metadata.annotations | default dict)) -}}
---
{{ toYaml . }}
{{ end }}
