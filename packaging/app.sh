#!/bin/sh
# Builds, signs and packs Sparkbar.app on a Mac with Xcode's command line tools.
#   app.sh IDENTITY [NOTARY-PROFILE]      IDENTITY "-" signs ad hoc
# With a profile (xcrun notarytool store-credentials) the disk image is sent to
# Apple's notary and the ticket is attached.
set -eu
identity=$1 profile=${2:-}
cd "$(dirname "$0")/.."
version=$(packaging/version.sh)
mkdir -p dist build/darwin
go run ./packaging/mac patch
export MACOSX_DEPLOYMENT_TARGET=14.0
for arch in arm64 amd64; do
  clang=$([ $arch = arm64 ] && echo arm64 || echo x86_64)
  GOOS=darwin GOARCH=$arch CGO_ENABLED=1 CC="clang -arch $clang -mmacosx-version-min=14.0" \
    go build -modfile build/darwin/go.mod -trimpath -ldflags "-s -w -X main.version=$version -X main.releases=${UPDATES:-}" -o dist/sparkbar-$arch ./app
done
lipo -create -output dist/sparkbar dist/sparkbar-arm64 dist/sparkbar-amd64
app=dist/Sparkbar.app
go run ./packaging/mac prepare "$app"
plutil -lint "$app/Contents/Info.plist"
if [ "$identity" = - ]; then
  codesign --force --sign - "$app"
else
  codesign --force --options runtime --timestamp --sign "$identity" "$app"
fi
codesign --verify --strict --verbose=2 "$app"
rm -rf dist/image && mkdir dist/image && cp -R "$app" dist/image/ && ln -s /Applications dist/image/Applications
hdiutil create -quiet -ov -volname Sparkbar -srcfolder dist/image -format UDZO dist/Sparkbar.dmg
rm -rf dist/image
if [ -n "$profile" ]; then
  xcrun notarytool submit dist/Sparkbar.dmg --keychain-profile "$profile" --wait
  xcrun stapler staple dist/Sparkbar.dmg
fi
echo "dist/Sparkbar.dmg"
