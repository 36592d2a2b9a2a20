# What infra/deploy and infra/remove share: arguments, tools, the account and the state of the stack. Not run alone.
# shellcheck shell=bash

# Ends because the arguments are wrong.
wrong() {
  echo "$1" >&2
  exit 2
}

# Ends because something does not permit to go on.
fail() {
  echo "$1" >&2
  exit 1
}

# Sets `stack`, `region` (empty: that of the environment) and `rest`.
read_stack() {
  stack=${1:-} region='' rest=()
  [ -n "$stack" ] || wrong "usage: $0 STACK [--region REGION]"
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      --region)
        [ -n "${2:-}" ] || wrong "--region needs a region"
        region=$2
        shift 2 ;;
      *)
        rest+=("$1")
        shift ;;
    esac
  done
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null 2>&1 || fail "missing: $tool. infra/README.md, Tools, lists what is needed"
  done
}

# Sets `account`, which the credentials belong to.
enter_account() {
  if ! account=$(aws sts get-caller-identity --query Account --output text ${region:+--region "$region"}); then
    fail "the AWS command line has no valid credentials${region:+ for $region}: its message is above. With SSO: aws sso login"
  fi
  echo "stack $stack, account $account${region:+, $region}"
}

# Prints the status of the stack, or `none`.
stack_status() {
  local printed
  if printed=$(aws cloudformation describe-stacks --stack-name "$stack" ${region:+--region "$region"} \
    --query "Stacks[0].StackStatus" --output text 2>&1); then
    echo "$printed"
  elif [[ $printed == *"does not exist"* ]]; then
    echo none
  else
    fail "the state of the stack $stack is not known: $printed"
  fi
}
