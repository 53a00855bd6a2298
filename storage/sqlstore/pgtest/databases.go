package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
)

// Schema creates an empty schema with a name of its own and returns a URL
// whose connections find, and create, everything there. drop removes it with
// all that is in it; it may be called again, and need not be called before
// Close.
func (s *Server) Schema(ctx context.Context) (schemaURL string, drop func(context.Context) error, err error) {
	name := s.name("schema")
	if err := s.execIn(ctx, role, "CREATE SCHEMA "+name); err != nil {
		return "", nil, fmt.Errorf("create a schema: %w", err)
	}
	drop = func(ctx context.Context) error {
		if err := s.execIn(ctx, role, "DROP SCHEMA IF EXISTS "+name+" CASCADE"); err != nil {
			return fmt.Errorf("drop a schema: %w", err)
		}
		return nil
	}
	return s.url(role, url.Values{"search_path": {name + ",pg_catalog"}}), drop, nil
}

// Database creates an empty database with a name of its own and returns its
// URL. drop breaks the connections to it and removes it; it may be called
// again, and need not be called before Close.
func (s *Server) Database(ctx context.Context) (databaseURL string, drop func(context.Context) error, err error) {
	name := s.name("database")
	if err := s.execIn(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
		return "", nil, fmt.Errorf("create a database: %w", err)
	}
	drop = func(ctx context.Context) error {
		if err := s.execIn(ctx, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop a database: %w", err)
		}
		return nil
	}
	return s.url(name, nil), drop, nil
}

// name is one that this server has not seen, and that needs no quotes.
func (s *Server) name(kind string) string { return fmt.Sprintf("%s_%d", kind, s.names.Add(1)) }

// execIn runs one statement in a database.
func (s *Server) execIn(ctx context.Context, database, statement string) error {
	conn, err := pgx.Connect(ctx, s.url(database, nil))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}
