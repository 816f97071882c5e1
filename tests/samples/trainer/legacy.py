print "python 2"
