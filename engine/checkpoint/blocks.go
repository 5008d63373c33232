package checkpoint

func (m Matrix) blocks(dst []float32, w []byte) {}
