package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// maxIntDigits is Python's own limit for converting between ints and text;
// here no int may grow beyond it.
const maxIntDigits = 4300

const maxIntBits = maxIntDigits * 10 / 3

// normInt returns b as int64 if it fits.
func normInt(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

// asInt returns the value of an int or bool.
func asInt(v any) (*big.Int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1), true
		}
		return new(big.Int), true
	case int64:
		return big.NewInt(v), true
	case *big.Int:
		return v, true
	}
	return nil, false
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// asFloat returns the value of a number as a float.
func asFloat(v any) (float64, bool) {
	if f, ok := v.(float64); ok {
		return f, true
	}
	b, ok := asInt(v)
	if !ok {
		return 0, false
	}
	f, _ := new(big.Float).SetInt(b).Float64()
	return f, true
}

// floatToInt returns f as an int if it has no fraction.
func floatToInt(f float64) (any, bool) {
	if math.IsInf(f, 0) || f != math.Trunc(f) {
		return nil, false
	}
	b, _ := big.NewFloat(f).Int(nil)
	return normInt(b), true
}

// index returns an int value that must fit a machine word, saturating.
func clampInt(v any) (int, bool) {
	b, ok := asInt(v)
	if !ok {
		return 0, false
	}
	if b.IsInt64() {
		return int(b.Int64()), true
	}
	if b.Sign() < 0 {
		return math.MinInt, true
	}
	return math.MaxInt, true
}

// floatRepr is Python's repr of a float.
func floatRepr(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	i := strings.IndexByte(s, 'e')
	exp, _ := strconv.Atoi(s[i+1:])
	if exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// stripUnderscores removes single underscores between digits and reports
// whether the others, if any, make the text no number.
func stripUnderscores(s string) (string, bool) {
	if !strings.Contains(s, "_") {
		return s, true
	}
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isHex(s[i-1]) || !isHex(s[i+1])) {
			return "", false
		}
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// parseInt is Python's int(s, base). Base 0 reads a prefix.
func parseInt(s string, base int) (any, bool) {
	s = strings.TrimFunc(s, isSpace)
	neg := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg = s[0] == '-'
		s = s[1:]
	}
	if len(s) > 1 && s[0] == '0' {
		if b, ok := map[byte]int{'x': 16, 'o': 8, 'b': 2}[s[1]|0x20]; ok && (base == b || base == 0) {
			base = b
			s = strings.TrimPrefix(s[2:], "_")
		}
	}
	if base == 0 {
		base = 10
	}
	s, ok := stripUnderscores(s)
	if !ok || s == "" || len(s) > maxIntDigits || s[0] == '-' || s[0] == '+' {
		return nil, false
	}
	b, ok := new(big.Int).SetString(s, base)
	if !ok {
		return nil, false
	}
	if neg {
		b.Neg(b)
	}
	return normInt(b), true
}

// parseFloat converts text that is known to be a number.
func parseFloat(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// pyFloat is Python's float(s) of a string.
func pyFloat(s string) (float64, bool) {
	s, ok := stripUnderscores(strings.TrimFunc(s, isSpace))
	if !ok || s == "" || len(s) > 10_000 {
		return 0, false
	}
	low := strings.ToLower(strings.TrimLeft(s, "+-"))
	if strings.ContainsAny(low, "xp") {
		return 0, false // hexadecimal is Go's, not Python's
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

// arith applies a binary arithmetic operator to two numbers.
func (r *run) arith(op string, a, b any) any {
	_, fa := a.(float64)
	_, fb := b.(float64)
	if fa || fb || op == "/" {
		x, _ := asFloat(a)
		y, _ := asFloat(b)
		return r.floatArith(op, x, y)
	}
	if x, ok := a.(int64); ok {
		if y, ok := b.(int64); ok {
			if v, ok := smallArith(op, x, y); ok {
				return v
			}
		}
	}
	x, _ := asInt(a)
	y, _ := asInt(b)
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		r.intBits(x.BitLen() + y.BitLen())
		z.Mul(x, y)
	case "//", "%":
		if y.Sign() == 0 {
			r.fail(ValueError, "integer division or modulo by zero")
		}
		q, m := new(big.Int).QuoRem(x, y, new(big.Int))
		if m.Sign() != 0 && (m.Sign() < 0) != (y.Sign() < 0) {
			q.Sub(q, big.NewInt(1))
			m.Add(m, y)
		}
		if z = m; op == "//" {
			z = q
		}
	case "**":
		if y.Sign() < 0 {
			fx, _ := asFloat(a)
			fy, _ := asFloat(b)
			return r.floatArith(op, fx, fy)
		}
		if x.BitLen() > 1 {
			if !y.IsInt64() || y.Int64() > maxIntBits {
				r.intBits(maxIntBits + 1)
			}
			r.intBits((x.BitLen() - 1) * int(y.Int64()))
		} else if y.BitLen() > 1 {
			// A base of 0, 1 or -1: only the parity and the sign of the
			// exponent matter.
			y = big.NewInt(2 - int64(y.Bit(0)))
		}
		z.Exp(x, y, nil)
	}
	r.intBits(z.BitLen())
	return normInt(z)
}

func (r *run) intBits(n int) {
	if n > maxIntBits {
		r.fail(LimitError, "integer grows beyond %d digits", maxIntDigits)
	}
	r.step(n / 64)
}

func smallArith(op string, x, y int64) (any, bool) {
	switch op {
	case "+":
		if z := x + y; (z > x) == (y > 0) {
			return z, true
		}
	case "-":
		if z := x - y; (z < x) == (y > 0) {
			return z, true
		}
	case "*":
		if int64(int32(x)) == x && int64(int32(y)) == y {
			return x * y, true
		}
	case "//", "%":
		if y > 0 {
			q, m := x/y, x%y
			if m < 0 {
				q, m = q-1, m+y
			}
			if op == "//" {
				return q, true
			}
			return m, true
		}
	}
	return nil, false
}

func (r *run) floatArith(op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		if y == 0 {
			r.fail(ValueError, "division by zero")
		}
		return x / y
	case "//", "%":
		if y == 0 {
			r.fail(ValueError, "float floor division or modulo by zero")
		}
		m := math.Mod(x, y)
		if m != 0 && (m < 0) != (y < 0) {
			m += y
		} else if m == 0 {
			m = math.Copysign(0, y)
		}
		if op == "%" {
			return m
		}
		q := (x - m) / y
		f := math.Floor(q)
		if q-f > 0.5 {
			f++
		}
		return f
	}
	if x == 0 && y < 0 {
		r.fail(ValueError, "zero cannot be raised to a negative power")
	}
	if x < 0 && y != math.Trunc(y) && !math.IsInf(y, 0) {
		r.fail(ValueError, "a negative number raised to a fraction is not a real number")
	}
	z := math.Pow(x, y)
	if math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		r.fail(ValueError, "numerical result out of range")
	}
	return z
}

// roundFloat is Python's round(f, places).
func roundFloat(f float64, places int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || places > 330 {
		return f
	}
	if places < -330 {
		return math.Copysign(0, f)
	}
	if places >= 0 {
		return parseFloat(strconv.FormatFloat(f, 'f', places, 64))
	}
	// Round the exact value half to even in the decimal system.
	b, _ := new(big.Float).SetPrec(2000).SetFloat64(f).Rat(nil)
	scaled := new(big.Rat).Quo(b, new(big.Rat).SetInt(pow10(-places)))
	n := roundRat(scaled)
	out, _ := new(big.Rat).SetInt(n.Mul(n, pow10(-places))).Float64()
	if out == 0 {
		return math.Copysign(0, f)
	}
	return out
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// roundRat rounds half to even.
func roundRat(x *big.Rat) *big.Int {
	twice := new(big.Int).Lsh(x.Num(), 1)
	q, m := new(big.Int).DivMod(twice.Add(twice, x.Denom()), new(big.Int).Lsh(x.Denom(), 1), new(big.Int))
	if m.Sign() == 0 && q.Bit(0) == 1 {
		q.Sub(q, big.NewInt(1))
	}
	return q
}

// isDigitRune reports whether Python's str.isdigit holds for c, nearly: the
// few superscripts and circled digits that it also accepts are left out.
func isDigitRune(c rune) bool { return unicode.Is(unicode.Nd, c) }
