package migrate

import (
	"errors"
	"fmt"
	"strings"
)

// split cuts text into its statements, without comments, so that a comment may
// be corrected in a file that was applied. A statement ends with a semicolon at
// the end of a line. What would take a parser to be sure of is refused.
func split(text string) ([]string, error) {
	var statements, lines []string
	for i, line := range strings.Split(text, "\n") {
		code, err := withoutComment(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if strings.TrimSpace(code) == "" {
			continue
		}
		code, ends := strings.CutSuffix(code, ";")
		lines = append(lines, code)
		if !ends {
			continue
		}
		sql := strings.TrimSpace(strings.Join(lines, "\n"))
		if sql == "" {
			return nil, fmt.Errorf("line %d: an empty statement", i+1)
		}
		statements, lines = append(statements, sql), nil
	}
	if len(lines) > 0 {
		return nil, errors.New("the last statement does not end with a semicolon at the end of a line")
	}
	return statements, nil
}

// withoutComment returns line up to its comment and without the blanks before it.
func withoutComment(line string) (string, error) {
	var quote byte // that is open, or 0
scan:
	for i := range len(line) {
		c, rest := line[i], line[i:]
		switch {
		case c == '\\':
			return "", errors.New("a backslash, which means different things in different strings")
		case quote != 0:
			if c == ';' {
				return "", errors.New("a semicolon between quotes")
			}
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '$':
			return "", errors.New("a dollar: no dollar quotes and no placeholders")
		case strings.HasPrefix(rest, "/*"):
			return "", errors.New("a /* comment; write -- before each line")
		case strings.HasPrefix(rest, "--"):
			line = line[:i]
			break scan
		case c == ';' && !endsLine(rest[1:]):
			return "", errors.New("a semicolon that does not end the line")
		}
	}
	if quote != 0 {
		return "", errors.New("a quote is open at the end of the line")
	}
	return strings.TrimRight(line, " \t\r"), nil
}

func endsLine(rest string) bool {
	rest = strings.TrimSpace(rest)
	return rest == "" || strings.HasPrefix(rest, "--")
}
