{{/* Names, labels, and what gateways and workers have in common. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Of one component; a dict with root and component. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "baton.image" -}}
{{ .root.Values.image.repository }}-{{ .kind }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "baton.redisUrl" -}}
{{- if .Values.redis.enabled -}}
redis://{{ .Release.Name }}-redis:6379/0
{{- else -}}
{{ required "redis.url: got nothing, expected redis://host:6379/0, since redis.enabled is false" .Values.redis.url }}
{{- end -}}
{{- end }}

{{/* The flags that name Redis and the receiver of spans. */}}
{{- define "baton.commonFlags" -}}
- --model={{ .Values.model.name }}
- --redis-url={{ include "baton.redisUrl" . }}
- --host=0.0.0.0
- --metrics-port=9100
{{- if .Values.collector.enabled }}
- --otlp-endpoint={{ .Release.Name }}-collector:4317
{{- else if .Values.collector.forwardTo }}
- --otlp-endpoint={{ .Values.collector.forwardTo }}
{{- end }}
{{- end }}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "baton.modelVolume" -}}
- name: models
{{- toYaml .Values.model.volume | nindent 2 }}
{{- end }}

{{- define "baton.secretVolumes" -}}
{{- range .Values.secrets }}
- name: secret-{{ . }}
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}

{{- define "baton.secretMounts" -}}
{{- range .Values.secrets }}
- {name: secret-{{ . }}, mountPath: /etc/baton/secrets/{{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Puts the model into the volume, where it is not. */}}
{{- define "baton.fetch" -}}
- name: fetch
  image: {{ include "baton.image" (dict "root" . "kind" "gateway") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [fetch, {{ .Values.model.name | quote }}]
  securityContext:
    {{- include "baton.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
{{- end }}
