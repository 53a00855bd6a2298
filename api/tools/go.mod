module github.com/warifu/warifu/api/tools

go 1.26.0

tool (
	connectrpc.com/connect/v2/cmd/protoc-gen-connect-go
	github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	connectrpc.com/connect/v2 v2.0.2 // indirect
	github.com/planetscale/vtprotobuf v0.6.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
