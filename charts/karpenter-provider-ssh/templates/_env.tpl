{{/* Variables by which an instance is told who it is, or that elect it. controller.env must not set them: half of an identity would be another's. */}}
{{- define "kpssh.identityVariables" -}}
INSTANCE_NAME: instance.name
POOL_NAMESPACE: poolNamespace
RELEASE: the release's name and namespace
LEADER_ELECTION_NAME: instance.name
LEADER_ELECTION_NAMESPACE: leaderElection.namespace
DISABLE_LEADER_ELECTION: nothing, for the lease is what makes the instance one
KARPENTER_SERVICE: the release's name
{{- end }}

{{/* What the chart tells the controller, as a map of name to value. A variable stands here even where its value is the controller's default:
what is not set could come from controller.envFrom. */}}
{{- define "kpssh.variables" -}}
INSTANCE_NAME: {{ include "kpssh.instance" . | quote }}
POOL_NAMESPACE: {{ include "kpssh.poolNamespace" . | quote }}
# With the pool namespace, what tells this installation from another that was given the same instance name.
RELEASE: {{ include "kpssh.shorten" (printf "%s.%s" .Release.Namespace (include "kpssh.fullname" .)) | quote }}
LEADER_ELECTION_NAME: {{ include "kpssh.leaseName" . | quote }}
LEADER_ELECTION_NAMESPACE: {{ .Values.leaderElection.namespace | quote }}
DISABLE_LEADER_ELECTION: "false"
KARPENTER_SERVICE: {{ include "kpssh.fullname" . | quote }}
METRICS_PORT: {{ .Values.controller.metricsPort | quote }}
HEALTH_PROBE_PORT: {{ .Values.controller.healthProbePort | quote }}
{{- with .Values.settings }}
LOG_LEVEL: {{ .logLevel | quote }}
BATCH_MAX_DURATION: {{ .batchMaxDuration | quote }}
BATCH_IDLE_DURATION: {{ .batchIdleDuration | quote }}
JOIN_CONCURRENCY: {{ .joinConcurrency | int64 | quote }}
PROBE_CONCURRENCY: {{ .probeConcurrency | int64 | quote }}
JUMP_HOST_CONNECTIONS: {{ .jumpHostConnections | int64 | quote }}
PROBE_INTERVAL: {{ .probeInterval | quote }}
KUBELET_UNITS: {{ join "," .kubeletUnits | quote }}
KUBE_CLIENT_QPS: {{ .kubeClientQPS | int64 | quote }}
KUBE_CLIENT_BURST: {{ .kubeClientBurst | int64 | quote }}
{{- with .featureGates }}
{{- $gates := list }}
{{- range $gate, $on := . }}
{{- $gates = append $gates (printf "%s=%t" $gate $on) }}
{{- end }}
FEATURE_GATES: {{ join "," $gates | quote }}
{{- end }}
{{- end }}
{{- with .Values.proxy }}
{{- with .httpProxy }}
HTTP_PROXY: {{ . | quote }}
{{- end }}
{{- with .httpsProxy }}
HTTPS_PROXY: {{ . | quote }}
{{- end }}
{{- if or .httpProxy .httpsProxy .noProxy }}
# The kubelet puts in where the API server is.
NO_PROXY: {{ list "$(KUBERNETES_SERVICE_HOST)" "localhost" "127.0.0.1" .noProxy | compact | join "," | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The container's env: the chart's variables, without those that controller.env replaces, then controller.env. */}}
{{- define "kpssh.env" -}}
{{- $identity := include "kpssh.identityVariables" . | fromYaml }}
{{- $users := dict }}
{{- range .Values.controller.env }}
{{- if hasKey $identity .name }}
{{- fail (printf "controller.env must not set %s: it follows from %s" .name (get $identity .name)) }}
{{- end }}
{{- $_ := set $users .name true }}
{{- end }}
{{- $env := list }}
{{- range $name, $value := include "kpssh.variables" . | fromYaml }}
{{- if not (hasKey $users $name) }}
{{- $env = append $env (dict "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- /* Without a limit or request these would be the node's: karpenter must not take them for its own. */}}
{{- $resources := .Values.controller.resources | default dict }}
{{- range $name, $from := dict "MEMORY_LIMIT" (list "limits" "memory" "0") "CPU_REQUESTS" (list "requests" "cpu" "1m") }}
{{- $kind := index $from 0 }}
{{- $resource := index $from 1 }}
{{- if and (dig $kind $resource "" $resources) (not (hasKey $users $name)) }}
{{- $field := dict "containerName" "controller" "resource" (printf "%s.%s" $kind $resource) "divisor" (index $from 2) }}
{{- $env = append $env (dict "name" $name "valueFrom" (dict "resourceFieldRef" $field)) }}
{{- end }}
{{- end }}
{{- concat $env .Values.controller.env | toYaml }}
{{- end }}
