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

# Sets `stack`, `region` (empty if none is given) and `rest`.
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

# Sets `region`, unless it is given, and `account`, which the credentials belong to. The AWS command
# line reads AWS_REGION, and the SAM CLI does not: the region is chosen here, and passed to both.
enter_account() {
  if [ -z "$region" ]; then
    region=${AWS_REGION:-${AWS_DEFAULT_REGION:-}}
    # It fails, and prints nothing, if the profile has no region.
    [ -n "$region" ] || region=$(aws configure get region) || true
    [ -n "$region" ] || fail "the region is not known: choose one with REGION=eu-central-1 (--region), AWS_REGION or aws configure set region"
  fi
  if ! account=$(aws sts get-caller-identity --query Account --output text --region "$region"); then
    fail "the AWS command line has no valid credentials for $region: its message is above. With SSO: aws sso login"
  fi
  echo "stack $stack, account $account, $region"
}

# Prints the status of the stack, or `none`.
stack_status() {
  local printed
  if printed=$(aws cloudformation describe-stacks --stack-name "$stack" --region "$region" \
    --query "Stacks[0].StackStatus" --output text 2>&1); then
    echo "$printed"
  elif [[ $printed == *"does not exist"* ]]; then
    echo none
  else
    fail "the state of the stack $stack is not known: $printed"
  fi
}
