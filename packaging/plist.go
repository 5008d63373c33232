package packaging

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

const plistHead = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
`

func base64Text(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// readPlist reads a property list whose root is a dictionary. Values are
// string, bool, []any and map[string]any; numbers and dates stay text.
func readPlist(b []byte) (map[string]any, error) {
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("not a property list: %w", err)
		}
		s, ok := t.(xml.StartElement)
		if !ok || s.Name.Local == "plist" {
			continue
		}
		v, err := plistValue(d, s, 0)
		if err != nil {
			return nil, err
		}
		m, ok := v.(map[string]any)
		if !ok {
			return nil, errors.New("the property list is no dictionary")
		}
		return m, nil
	}
}

func plistValue(d *xml.Decoder, s xml.StartElement, depth int) (any, error) {
	if depth > 32 {
		return nil, errors.New("the property list is nested too deeply")
	}
	switch s.Name.Local {
	case "true", "false":
		return s.Name.Local == "true", d.Skip()
	case "string", "integer", "real", "date", "data", "key":
		var text string
		if err := d.DecodeElement(&text, &s); err != nil {
			return nil, err
		}
		return text, nil
	case "array", "dict":
	default:
		return nil, fmt.Errorf("a property list has no <%s>", s.Name.Local)
	}
	list, dict, key := []any{}, map[string]any{}, ""
	isDict, haveKey := s.Name.Local == "dict", false
	for {
		t, err := d.Token()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		switch t := t.(type) {
		case xml.EndElement:
			if isDict {
				if haveKey {
					return nil, fmt.Errorf("the key %s has no value", key)
				}
				return dict, nil
			}
			return list, nil
		case xml.StartElement:
			v, err := plistValue(d, t, depth+1)
			if err != nil {
				return nil, err
			}
			switch {
			case !isDict:
				list = append(list, v)
			case t.Name.Local == "key":
				if haveKey {
					return nil, fmt.Errorf("the key %s has no value", key)
				}
				key, haveKey = v.(string), true
				if _, twice := dict[key]; twice {
					return nil, fmt.Errorf("the key %s is there twice", key)
				}
			case !haveKey:
				return nil, errors.New("a value of a dictionary has no key")
			default:
				dict[key], haveKey = v, false
			}
		}
	}
}

func base64Reader(s string) io.Reader {
	return base64.NewDecoder(base64.StdEncoding, strings.NewReader(s))
}
