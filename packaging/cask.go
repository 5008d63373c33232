package packaging

import "fmt"

// Cask is the recipe by which brew installs the app: the version, the sums of
// the two disk images, and the oldest macOS ("14.0").
func Cask(version, sumARM, sumIntel, minimum string) string {
	name := map[string]string{"14.0": "sonoma", "15.0": "sequoia"}[minimum]
	return fmt.Sprintf(`cask "sparkbar" do
  version "%s"
  arch arm: "arm64", intel: "amd64"
  sha256 arm:   "%s",
         intel: "%s"

  url "https://github.com/sparkbar/sparkbar/releases/download/v#{version}/Sparkbar-#{version}-#{arch}.dmg"
  name "Sparkbar"
  desc "Private LLM endpoint with lossless speculative decoding"
  homepage "https://github.com/sparkbar/sparkbar"

  depends_on macos: ">= :%s"

  app "Sparkbar.app"
  binary "#{appdir}/Sparkbar.app/Contents/MacOS/sparkbar"

  uninstall quit: "app.sparkbar.Sparkbar"

  zap trash: [
    "~/Library/Application Support/Sparkbar",
    "~/Library/Preferences/app.sparkbar.Sparkbar.plist",
  ]
end
`, version, sumARM, sumIntel, name)
}
