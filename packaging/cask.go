package packaging

import (
	"fmt"
	"strings"
)

// Cask is the recipe by which brew installs the app: the address below which the
// disk images lie, the version, their sums, and the oldest macOS ("14.0").
func Cask(releases, version, sumARM, sumIntel, minimum string) string {
	releases = strings.TrimRight(releases, "/")
	name := map[string]string{"14.0": "sonoma", "15.0": "sequoia"}[minimum]
	return fmt.Sprintf(`cask "sparkbar" do
  version "%s"
  arch arm: "arm64", intel: "amd64"
  sha256 arm:   "%s",
         intel: "%s"

  url "%s/Sparkbar-#{version}-#{arch}.dmg"
  name "Sparkbar"
  desc "Private LLM endpoint with lossless speculative decoding"
  homepage "%s"

  depends_on macos: ">= :%s"

  app "Sparkbar.app"
  binary "#{appdir}/Sparkbar.app/Contents/MacOS/sparkbar"

  uninstall quit: "app.sparkbar.Sparkbar"

  zap trash: [
    "~/Library/Application Support/Sparkbar",
    "~/Library/Preferences/app.sparkbar.Sparkbar.plist",
  ]
end
`, version, sumARM, sumIntel, releases, releases, name)
}
