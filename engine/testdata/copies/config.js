function readConfig(path) {
  const text = fs.readFileSync(path, "utf8");
  const config = JSON.parse(text);
  if (!config.host) {
    config.host = "localhost";
  }
  if (!config.port) {
    config.port = 8080;
  }
  return config;
}

function startServer(path) {
  const config = readConfig(path);
  const server = http.createServer(handleRequest);
  server.listen(config.port, config.host);
  console.log("Listening on " + config.host + ":" + config.port);
  return server;
}
