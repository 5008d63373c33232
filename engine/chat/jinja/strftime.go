package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats t as C's strftime does in the C locale. Unknown directives
// stay as they are. The flags - _ 0 ^ # change the padding and the case.
func (r *run) strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			r.put(&b, format[i:i+1])
			continue
		}
		start := i
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^#", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		s, ok := directive(t, format[i], flag)
		if !ok {
			s = format[start : i+1]
		}
		r.put(&b, s)
	}
	return b.String()
}

func directive(t time.Time, c, flag byte) (string, bool) {
	num := func(n, width int, pad string) string {
		switch flag {
		case '-':
			return fmt.Sprint(n)
		case '_':
			pad = " "
		case '0':
			pad = "0"
		}
		s := fmt.Sprint(n)
		return strings.Repeat(pad, max(width-len(s), 0)) + s
	}
	name := func(s string) string {
		if flag == '^' || flag == '#' {
			return strings.ToUpper(s)
		}
		return s
	}
	hour12 := (t.Hour()+11)%12 + 1
	isoYear, isoWeek := t.ISOWeek()
	weekday := int(t.Weekday())
	switch c {
	case 'a':
		return name(t.Format("Mon")), true
	case 'A':
		return name(t.Format("Monday")), true
	case 'b', 'h':
		return name(t.Format("Jan")), true
	case 'B':
		return name(t.Format("January")), true
	case 'c':
		return t.Format("Mon Jan _2 15:04:05 2006"), true
	case 'C':
		return num(t.Year()/100, 2, "0"), true
	case 'd':
		return num(t.Day(), 2, "0"), true
	case 'D', 'x':
		return t.Format("01/02/06"), true
	case 'e':
		return num(t.Day(), 2, " "), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'F':
		return t.Format("2006-01-02"), true
	case 'g':
		return num(isoYear%100, 2, "0"), true
	case 'G':
		return num(isoYear, 4, "0"), true
	case 'H':
		return num(t.Hour(), 2, "0"), true
	case 'I':
		return num(hour12, 2, "0"), true
	case 'j':
		return num(t.YearDay(), 3, "0"), true
	case 'k':
		return num(t.Hour(), 2, " "), true
	case 'l':
		return num(hour12, 2, " "), true
	case 'm':
		return num(int(t.Month()), 2, "0"), true
	case 'M':
		return num(t.Minute(), 2, "0"), true
	case 'n':
		return "\n", true
	case 'p':
		if flag == '#' {
			return strings.ToLower(t.Format("PM")), true
		}
		return t.Format("PM"), true
	case 'P':
		return t.Format("pm"), true
	case 'r':
		return t.Format("03:04:05 PM"), true
	case 'R':
		return t.Format("15:04"), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'S':
		return num(t.Second(), 2, "0"), true
	case 't':
		return "\t", true
	case 'T', 'X':
		return t.Format("15:04:05"), true
	case 'u':
		return fmt.Sprint((weekday+6)%7 + 1), true
	case 'U':
		return num((t.YearDay()+6-weekday)/7, 2, "0"), true
	case 'V':
		return num(isoWeek, 2, "0"), true
	case 'w':
		return fmt.Sprint(weekday), true
	case 'W':
		return num((t.YearDay()+6-(weekday+6)%7)/7, 2, "0"), true
	case 'y':
		return num(t.Year()%100, 2, "0"), true
	case 'Y':
		return num(t.Year(), 4, "0"), true
	case 'z', 'Z':
		// Python's datetime.now() has no zone, so both are empty.
		return "", true
	case '%':
		return "%", true
	}
	return "", false
}
