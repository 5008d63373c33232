package checkpoint

import "fmt"

// OpenBytes opens a checkpoint that is part of the program: files by name, of
// which config.json and model.safetensors must be there and
// generation_config.json may. The weights are copied once, to aligned memory
// that lives until Close.
func OpenBytes(name string, files map[string][]byte) (*Checkpoint, error) {
	c := &Checkpoint{path: name, tensors: map[string]*entry{}, meta: map[string]string{}}
	err := c.readBytes(name, files)
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) readBytes(name string, files map[string][]byte) (err error) {
	for _, need := range []string{"config.json", "model.safetensors"} {
		if files[need] == nil {
			return fmt.Errorf("%s has no %s", name, need)
		}
	}
	c.raw = files["config.json"]
	if c.config, err = parseObject(name+"/config.json", c.raw); err != nil {
		return err
	}
	if text := files["generation_config.json"]; text != nil {
		if c.generate, err = parseObject(name+"/generation_config.json", text); err != nil {
			return err
		}
	}
	if c.quant, err = readQuantization(c.config); err != nil {
		return err
	}
	data := newPages(len(files["model.safetensors"]))
	copy(data, files["model.safetensors"])
	c.files = append(c.files, mapped{name + "/model.safetensors", data, false})
	return c.addMapped(len(c.files) - 1)
}
