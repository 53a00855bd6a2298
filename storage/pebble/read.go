package pebble

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash/maphash"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// readAll reads the given items of a call outside the lock, bodies included;
// the State of a record that is not there stays Absent. Memory is looked at
// first, for all of them at once: what is not in memory then is in the engine,
// which only ever moves on.
func (s *Store) readAll(ks *keyset, items []int, found []storage.Found, key func(int) claim.Key) error {
	ks.values = ks.values[:0]
	s.mu.Lock()
	for _, i := range items {
		ks.values = append(ks.values, s.memory(ks.hashes[i], ks.key(i)))
	}
	s.mu.Unlock()
	defer clear(ks.values) // so that they do not keep memtables alive
	for n, i := range items {
		rec := &found[i].Record
		aside, err := s.decode(ks.values[n], ks.key(i), key(i), rec)
		if err == nil && aside {
			err = s.readBody(ks.key(i), rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleted is the value of a key that memory knows to be deleted.
var deleted = []byte{}

// memory returns what memory has under key: nil when it knows nothing of it.
// Store.mu is held; the value stays as it is afterwards.
func (s *Store) memory(hash uint64, key []byte) []byte {
	o, ok := s.mu.front.get(hash, key)
	switch {
	case !ok:
		return nil
	case o.kind == opDelete:
		return deleted
	}
	return o.value
}

// readLocked reads a record under Store.mu, without the body.
func (s *Store) readLocked(hash uint64, encoded []byte, key claim.Key, rec *claim.Record) (bodyAside bool, err error) {
	return s.decode(s.memory(hash, encoded), encoded, key, rec)
}

// decode decodes a record from memory, or from the engine where memory knows
// nothing of it. It reports whether the body is stored aside.
func (s *Store) decode(value, encoded []byte, key claim.Key, rec *claim.Record) (bodyAside bool, err error) {
	if value == nil {
		engine, closer, err := s.db.Get(encoded)
		if errors.Is(err, pebble.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, s.failed("read", err)
		}
		bodyAside, err = decodeRecord(rec, key, engine)
		return bodyAside, s.failed("read", errors.Join(err, closer.Close()))
	}
	if len(value) == 0 {
		return false, nil
	}
	bodyAside, err = decodeRecord(rec, key, value)
	return bodyAside, s.failed("read", err)
}

// readBody loads a body stored aside, outside the lock. Between the two reads a
// sweep or a forget may have taken it, and a new life brought another: then both
// are read again.
func (s *Store) readBody(encoded []byte, rec *claim.Record) error {
	bodyKey := appendBodyKey(nil, encoded)
	s.mu.Lock()
	value := s.memory(maphash.Bytes(s.seed, bodyKey), bodyKey)
	s.mu.Unlock()
	ok, err := s.loadBody(value, bodyKey, rec)
	if err != nil || ok && sha256.Sum256(rec.Completion.Body) == rec.Completion.Sum {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := rec.Key
	*rec = claim.Record{}
	aside, err := s.readLocked(maphash.Bytes(s.seed, encoded), encoded, key, rec)
	if err != nil || !aside {
		return err
	}
	return s.bodyLocked(encoded, rec)
}

// bodyLocked loads a body stored aside, under Store.mu.
func (s *Store) bodyLocked(encoded []byte, rec *claim.Record) error {
	bodyKey := appendBodyKey(nil, encoded)
	ok, err := s.loadBody(s.memory(maphash.Bytes(s.seed, bodyKey), bodyKey), bodyKey, rec)
	if err == nil && !ok {
		err = s.damaged(errors.Join(storage.ErrDamaged, errors.New("a result body is missing")))
	}
	return err
}

// loadBody puts a body from memory, or else from the engine, into rec, and
// reports whether there is one.
func (s *Store) loadBody(value, bodyKey []byte, rec *claim.Record) (ok bool, err error) {
	if value == nil {
		engine, closer, err := s.db.Get(bodyKey)
		if errors.Is(err, pebble.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, s.failed("read body", err)
		}
		value = bytes.Clone(engine)
		if err := closer.Close(); err != nil {
			return false, s.failed("read body", err)
		}
	}
	if len(value) == 0 {
		return false, nil
	}
	completion := *rec.Completion
	completion.Body = bytes.Clone(value)
	rec.Completion = &completion
	return true, nil
}
