{{/* Shortens a name to 63 characters without making two long names equal: the cut is replaced by a digest of the whole. */}}
{{- define "kpssh.shorten" -}}
{{- if gt (len .) 63 -}}
{{- printf "%s-%s" (. | trunc 54 | trimSuffix "-") (. | sha256sum | trunc 8) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{- define "kpssh.name" -}}
{{- include "kpssh.shorten" (default .Chart.Name .Values.nameOverride) -}}
{{- end }}

{{/* Name of what lives in the release's namespace. A release that is named after the chart is not given its name again, unless it ends in it:
release a has the full name a-<chart>, so that release a-<chart> must have another. */}}
{{- define "kpssh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "kpssh.shorten" .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if and (contains $name .Release.Name) (not (hasSuffix (printf "-%s" $name) .Release.Name)) -}}
{{- include "kpssh.shorten" .Release.Name -}}
{{- else -}}
{{- include "kpssh.shorten" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Name of what lives outside of it, where releases of one name in two namespaces meet. The colon keeps release b-c of namespace a
and release c of namespace a-b apart; RBAC names may have one. */}}
{{- define "kpssh.clusterName" -}}
{{- printf "kpssh:%s:%s" .Release.Namespace (include "kpssh.fullname" .) -}}
{{- end }}

{{- define "kpssh.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kpssh.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "kpssh.poolNamespace" -}}
{{- default .Release.Namespace .Values.poolNamespace -}}
{{- end }}

{{/* The instance's name, judged here: a bad one must fail the installation and not the pod. */}}
{{- define "kpssh.instance" -}}
{{- $name := .Values.instance.name -}}
{{- if not (and (kindIs "string" $name) (regexMatch "^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$" $name)) -}}
{{- fail (printf "instance.name %q is not a DNS label of at most 40 characters" (toString $name)) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* The one lease of an instance name in the cluster. */}}
{{- define "kpssh.leaseName" -}}
kpssh-{{ include "kpssh.instance" . }}
{{- end }}

{{- define "kpssh.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default (printf "v%s" .Chart.AppVersion) .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- define "kpssh.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kpssh.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "kpssh.labels" -}}
{{ include "kpssh.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "kpssh.shorten" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_")) }}
karpenter.dklesev.github.io/instance: {{ include "kpssh.instance" . }}
{{- end }}

{{/* The subject of every binding. */}}
{{- define "kpssh.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "kpssh.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{/* Labels of the pod: podLabels, under those that the Deployment selects by and the one that names the instance. */}}
{{- define "kpssh.podLabels" -}}
{{- $own := merge (include "kpssh.selectorLabels" . | fromYaml) (dict "karpenter.dklesev.github.io/instance" (include "kpssh.instance" .)) -}}
{{- mergeOverwrite (deepCopy .Values.podLabels) $own | toYaml -}}
{{- end }}

{{- define "kpssh.dnsPolicy" -}}
{{- if .Values.dnsPolicy -}}
{{- .Values.dnsPolicy -}}
{{- else if .Values.hostNetwork -}}
ClusterFirstWithHostNet
{{- end -}}
{{- end }}

{{/* The group of the instance's bootstrap tokens. The controller derives the same one from the instance's name. */}}
{{- define "kpssh.bootstrapGroup" -}}
{{- $instance := include "kpssh.instance" . -}}
system:bootstrappers:kpssh{{ if ne $instance "default" }}:{{ $instance }}{{ end }}
{{- end }}

{{/* Relabelings of scraped metrics. Karpenter's own know nothing of instances: all get the label that this project's metrics have. Takes a list of
the root and the user's relabelings. */}}
{{- define "kpssh.metricRelabelings" -}}
{{- $own := dict "targetLabel" "kpssh_instance" "replacement" (include "kpssh.instance" (index . 0)) -}}
{{- concat (list $own) (index . 1) | toYaml -}}
{{- end }}
