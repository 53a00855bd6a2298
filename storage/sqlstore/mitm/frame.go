package mitm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// What a connection may make the proxy hold at most.
const (
	frameBytesMax   = 64 << 20
	startupBytesMax = 10_000 // the server's own limit
	tripBytesMax    = 64 << 20
	replyBytesMax   = 64 << 20
)

// Message types the proxy acts on. Two directions share letters.
const (
	toServerBind         = 'B'
	toServerClose        = 'C'
	toServerCopyData     = 'd'
	toServerCopyDone     = 'c'
	toServerCopyFail     = 'f'
	toServerExecute      = 'E'
	toServerFlush        = 'H'
	toServerFunctionCall = 'F'
	toServerParse        = 'P'
	toServerQuery        = 'Q'
	toServerSync         = 'S'
	toServerTerminate    = 'X'

	toClientAuthentication  = 'R'
	toClientCloseComplete   = '3'
	toClientCopyIn          = 'G'
	toClientDataRow         = 'D'
	toClientError           = 'E'
	toClientNotification    = 'A'
	toClientParameterStatus = 'S'
	toClientParseComplete   = '1'
	toClientReady           = 'Z'
)

// frame is one message with its type and length, exactly as it travels.
type frame []byte

func (f frame) kind() byte   { return f[0] }
func (f frame) body() []byte { return f[frameHeadBytes:] }

const frameHeadBytes = 5

func readFrame(r *bufio.Reader) (frame, error) {
	head, err := r.Peek(frameHeadBytes)
	if err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > frameBytesMax {
		return nil, fmt.Errorf("a message of type %q claims %d bytes", head[0], n)
	}
	f := make(frame, 1+int(n))
	if _, err := io.ReadFull(r, f); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return f, nil
}

// message is what pgproto3 encodes.
type message interface {
	Encode(dst []byte) ([]byte, error)
}

// encode gives the bytes of messages that are small and ours, so that they
// always can be encoded.
func encode(messages ...message) []byte {
	var out []byte
	for _, m := range messages {
		var err error
		if out, err = m.Encode(out); err != nil {
			panic(fmt.Sprintf("mitm: encode %T: %v", m, err))
		}
	}
	return out
}

// Codes in the first message of a connection, in place of a version.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSSEnc = 80877104
)

// readStartup reads a connection's first message, which has no type. It
// returns its code and the message from the code on.
func readStartup(r *bufio.Reader) (uint32, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 8 || n > startupBytesMax {
		return 0, nil, fmt.Errorf("the first message claims %d bytes", n)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("read the first message: %w", err)
	}
	return binary.BigEndian.Uint32(body), body, nil
}

var errTooLarge = errors.New("more bytes than the proxy holds for one trip")
