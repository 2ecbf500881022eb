// Builds the container that the project ships in and tries it, with the Docker daemon of the machine it runs on.
import { execFileSync } from "node:child_process";

const docker = (...args) => execFileSync("docker", args, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();
docker("build", "--quiet", "--tag", "keepsake:preflight", "--file", "container/Dockerfile", ".");
const said = docker("run", "--rm", "--network", "none", "--memory", "64m", "keepsake:preflight");
if (said !== "keepsake is here") throw new Error(`the container said: ${said}`);
console.log(`containers: ${said}`);
