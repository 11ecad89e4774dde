# The controller, static, and its license, and nothing else: no shell, no package manager, no root. `make image` puts the same files
# into an image without Docker; this is for those who build with it: docker build --build-arg VERSION=v1.2.3 -t NAME .
ARG GO_VERSION=1.26.10
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
# go.mod may ask for a newer patch release than the base image has.
ENV GOTOOLCHAIN=auto
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY apis apis
COPY cmd cmd
COPY pkg pkg
ARG VERSION=dev
ARG TARGETOS=linux
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version=$VERSION" -o /controller ./cmd/controller

FROM scratch
COPY --from=build /controller /controller
COPY LICENSE /LICENSE
# A number, not a name: kubelet's runAsNonRoot can only judge a number.
USER 65532:65532
ENTRYPOINT ["/controller"]
