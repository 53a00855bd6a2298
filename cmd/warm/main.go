package main
import (_ "github.com/cockroachdb/pebble/v2"; _ "connectrpc.com/connect/v2"; _ "github.com/prometheus/client_golang/prometheus"; _ "connectrpc.com/connect/v2/connecthttp"; _ "connectrpc.com/grpchealth"; _ "connectrpc.com/grpcreflect/v2"; _ "github.com/spf13/cobra")
func main(){}
