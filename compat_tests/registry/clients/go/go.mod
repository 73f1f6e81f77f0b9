module kbroker.test/registry

go 1.26.0

require github.com/twmb/franz-go/pkg/sr v1.6.0
